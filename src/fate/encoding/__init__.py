"""Events to images: Pillar Encoding and the representations of the peers."""
