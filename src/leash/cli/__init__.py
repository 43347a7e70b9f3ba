"""The command line, a file for each command. The library never imports it."""
