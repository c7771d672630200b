"""`make beside-release`: whole trainings by the release's own code and by ours. See __main__.py."""
