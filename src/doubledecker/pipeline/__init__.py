"""The upper deck: Spark reads the journal, keeps the lake, and publishes; the only package that imports pyspark."""
