"""`make campaign`: kills, damaged files, full disks, lost workers. See __main__.py."""
