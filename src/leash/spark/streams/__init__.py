"""Streams and super streams on Spark: offsets make reading a pure function, so there is nothing to stage."""
