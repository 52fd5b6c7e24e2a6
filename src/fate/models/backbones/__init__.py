"""From a pseudo-image to features at strides 8, 16 and 32."""
