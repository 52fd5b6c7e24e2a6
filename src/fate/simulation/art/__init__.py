"""What a simulated street consists of: bodies, textures, buildings, traffic."""
