// The keyed hash of all planes (crates/hash): two products and three shifts, a bijection of 64 bits. A target
// without 64-bit products has none of it; docs/p4.md says what takes its place there.

action mix(inout bit<64> word, in key_t key) {
    word = word ^ (word >> 32);
    word = word * key.mul1;
    word = word ^ (word >> 29);
    word = word * key.mul2;
    word = word ^ (word >> 32);
}

// Memory order of the machines that the other planes run on.
action swap64(in bit<64> word, out bit<64> swapped) {
    swapped = word[7:0] ++ word[15:8] ++ word[23:16] ++ word[31:24]
        ++ word[39:32] ++ word[47:40] ++ word[55:48] ++ word[63:56];
}

// 32 uniform bits onto 0..n, without a division.
action scale(in bit<32> value, in bit<32> n, out bit<32> at) {
    bit<64> product = (bit<64>)value * (bit<64>)n;
    at = product[63:32];
}

// The rest of a value of 48 bits by n, of which the inverse is the 64th power of 2 less one by n, without its rest.
action rest(in bit<64> value, in bit<64> n, in bit<64> inverse, out bit<64> left) {
    bit<128> product = (bit<128>)value * (bit<128>)inverse;
    left = value - product[127:64] * n;
    left = left >= n ? left - n : left;
}

// A state: its address, and its ports as they stand on the wire. The branches keep what the compiler makes of it small:
// it puts one product into the other, twice for each shift.
control HashState(in bit<128> address, in bit<32> ports, in key_t key, out bit<64> value) { apply {
    bit<64> high; bit<64> low;
    swap64(address[127:64], high);
    swap64(address[63:0], low);
    bit<64> word = (bit<64>)(ports[7:0] ++ ports[15:8] ++ ports[23:16] ++ ports[31:24]);
    if (high == 0 && low[31:0] == 0xffff0000) {
        value = (low & 0xffffffff00000000) | word;
    } else {
        value = high ^ key.wide;
        mix(value, key);
        value = value ^ low;
        mix(value, key);
        value = value ^ word;
    }
    value = value ^ key.xor;
    mix(value, key);
} }
