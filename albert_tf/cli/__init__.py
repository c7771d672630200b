"""The commands, a file each: from flags to calls of the library, and what they print."""
