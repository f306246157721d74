"""`corl-twins tune`: what a search asks for, its trials on Ray, and what came of them."""
