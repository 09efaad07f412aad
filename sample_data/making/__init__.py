"""How the sample data is made: fragments written by hand, and the small programs that compose them."""
