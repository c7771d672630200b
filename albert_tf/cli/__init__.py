"""The commands, a file each: flags -> checks, the library's calls, and what is said of them."""
