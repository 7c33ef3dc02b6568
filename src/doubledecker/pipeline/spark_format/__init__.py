"""The bus as a Spark format: `spark.read.format("doubledecker")` and its writers."""
