"""What a Parquet file says of itself, read without pyarrow, which takes too much of it on trust."""
