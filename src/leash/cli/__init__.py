"""The command line, with a file for each command. The library never imports it."""
