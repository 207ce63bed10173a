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

// A state: its address, and its ports as they stand on the wire.
action hash_state(in bit<128> address, in bit<32> ports, in key_t key, out bit<64> value) {
    bit<64> high;
    bit<64> low;
    swap64(address[127:64], high);
    swap64(address[63:0], low);
    bit<64> word = (bit<64>)(ports[7:0] ++ ports[15:8] ++ ports[23:16] ++ ports[31:24]);
    bool is_ipv4 = high == 0 && low[31:0] == 0xffff0000;
    bit<64> wide = high ^ key.wide;
    mix(wide, key);
    wide = wide ^ low;
    mix(wide, key);
    value = (is_ipv4 ? (low & 0xffffffff00000000) | word : wide ^ word) ^ key.xor;
    mix(value, key);
}
