"""What a Parquet file says of itself, read without pyarrow's reader, which takes too much of it on trust."""
