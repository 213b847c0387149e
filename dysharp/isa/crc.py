"""CRC-8 of a packet: polynomial x^8 + x^2 + x + 1, initial value 0, nothing reflected.

The CRC detects every damage within eight neighbouring bits, and every odd number of flipped bits. It is assumed: the check of NVLink is not public.
"""

POLYNOMIAL = 0x107
PERIOD = 127  # x^127 = 1 modulo the polynomial


def _times_x8(byte: int) -> int:
    for _ in range(8):
        byte <<= 1
        if byte & 0x100:
            byte ^= POLYNOMIAL
    return byte


_TABLE = bytes(_times_x8(byte) for byte in range(256))


def crc8(data: bytes | bytearray) -> int:
    """The CRC-8 of `data`, 0 .. 255.

    A loop over all bytes would dominate the cost of a packet. Because x^127 = 1 modulo the polynomial, pieces of the
    message at distances of 127 bits are added first. The loop then covers one piece of 127 bits.
    """
    word = int.from_bytes(data, "big")
    width = PERIOD << (8 * len(data) // PERIOD).bit_length()
    while width > PERIOD:
        width >>= 1
        word = (word >> width) ^ (word & ((1 << width) - 1))
    crc = 0
    for byte in word.to_bytes(16, "big"):
        crc = _TABLE[crc ^ byte]
    return crc
