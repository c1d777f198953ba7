// Changes one bit of the third large packet that passes, and mends the checksum of the network, as a broken
// switch or memory would. Declared here is what the kernel promises of a program: no header of libbpf is needed.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SECTION(name) __attribute__((section(name), used))
enum { LARGE = 1000, PLACE = 700, THIRD = 3 };

static long (*store_bytes)(void *packet, __u32 offset, const void *from, __u32 size, __u64 flags) =
    (void *)BPF_FUNC_skb_store_bytes;
static long (*load_bytes)(const void *packet, __u32 offset, void *to, __u32 size) =
    (void *)BPF_FUNC_skb_load_bytes;

static __u32 seen = 0;

SECTION("tc") int flip(struct __sk_buff *packet) {
    __u8 byte;
    if (packet->len >= LARGE && ++seen == THIRD && !load_bytes(packet, PLACE, &byte, 1)) {
        byte ^= 4;
        store_bytes(packet, PLACE, &byte, 1, BPF_F_RECOMPUTE_CSUM);
    }
    return TC_ACT_OK;
}

char _license[] SECTION("license") = "GPL";
