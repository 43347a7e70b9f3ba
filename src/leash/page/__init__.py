"""The live page: what all processes of a virtual host are doing, in a browser."""
