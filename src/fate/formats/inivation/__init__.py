"""iniVation's formats: AEDAT 2, AEDAT 3.1 and AEDAT 4."""
