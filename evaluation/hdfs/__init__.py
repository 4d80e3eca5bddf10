"""A real HDFS on an emulated fabric, for Mayflower to be compared with."""
