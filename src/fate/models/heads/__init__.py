"""From features to boxes, and what training asks of them."""
