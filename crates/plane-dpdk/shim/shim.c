/* What weir needs of DPDK, as functions: most of the fast ones are inline in its headers.
 *
 * Buffers are in one region, apart from the mbufs that describe them, so that the plane can have the region as
 * a slice while DPDK has the descriptions. */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_devargs.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>

#define BURST 64

/* A frame in the region. */
struct weir_frame {
	struct rte_mbuf *mbuf;
	uint32_t at;
	uint32_t len;
};

struct weir_pool {
	struct rte_mempool *mempool;
	uint8_t *base;
	size_t bytes;
};

int weir_dpdk_start(int argc, char **argv)
{
	return rte_eal_init(argc, argv) < 0 ? rte_errno : 0;
}

const char *weir_dpdk_words(int error)
{
	return rte_strerror(error < 0 ? -error : error);
}

/* The calling thread gets a number, and with it a cache of free buffers. */
int weir_dpdk_enter(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return 0;
	return rte_thread_register() < 0 ? rte_errno : 0;
}

void weir_dpdk_leave(void)
{
	rte_thread_unregister();
}

/* Whether a driver answers to the name of a device. */
int weir_dpdk_known(const char *device)
{
	struct rte_devargs args;
	int found;

	memset(&args, 0, sizeof(args));
	found = rte_devargs_parse(&args, device);
	if (found == 0)
		rte_devargs_reset(&args);
	return found == 0;
}

int weir_dpdk_pool(struct weir_pool *pool, const char *name, uint32_t buffers, uint16_t room)
{
	struct rte_pktmbuf_extmem memory;

	memset(pool, 0, sizeof(*pool));
	pool->bytes = (size_t)buffers * room;
	pool->base = rte_zmalloc(name, pool->bytes, 4096);
	if (!pool->base)
		return ENOMEM;
	memory.buf_ptr = pool->base;
	memory.buf_iova = rte_malloc_virt2iova(pool->base);
	memory.buf_len = pool->bytes;
	memory.elt_size = room;
	pool->mempool = rte_pktmbuf_pool_create_extbuf(name, buffers, buffers >= 768 ? 256 : 0, 0, room,
						       SOCKET_ID_ANY, &memory, 1);
	if (!pool->mempool) {
		int error = rte_errno;

		rte_free(pool->base);
		pool->base = NULL;
		return error;
	}
	return 0;
}

void weir_dpdk_pool_free(struct weir_pool *pool)
{
	rte_mempool_free(pool->mempool);
	rte_free(pool->base);
	memset(pool, 0, sizeof(*pool));
}

uint32_t weir_dpdk_pool_left(const struct weir_pool *pool)
{
	return rte_mempool_avail_count(pool->mempool);
}

/* Whether a driver knows rules at all. What it says of those that are wanted it is asked when there are queues. */
static int knows_rules(uint16_t port)
{
	struct rte_flow_attr attr = { .ingress = 1 };
	struct rte_flow_action_queue queue = { .index = 0 };
	struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error said;

	memset(&said, 0, sizeof(said));
	return rte_flow_validate(port, &attr, pattern, actions, &said) != -ENOSYS;
}

/* Plugs in a device and begins to receive by it, by as many queues as there are pools; `step` says how far that
 * went, and `most` how many queues it has. Without arguments it is one that was there when DPDK started. With one
 * pool it may have up to `led` queues, if its driver knows rules that lead to them: those after the first receive into
 * the same pool, `led_ring` frames at a time. `led` says then how many there are in all. */
int weir_dpdk_open(const char *device, const char *name, const struct weir_pool *const *pools, uint16_t queues,
		   uint16_t ring, uint16_t *led, uint16_t led_ring, uint16_t *port, uint32_t *interface,
		   uint16_t *most, int *step)
{
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	uint16_t rx = ring, tx = ring, led_rx = led_ring, led_tx = led_ring, all = queues;
	int socket, error;

	*step = 0;
	*most = queues;
	if (device) {
		/* Buses let some devices be probed twice: what is somebody's stays his. */
		if (rte_eth_dev_get_port_by_name(name, port) == 0)
			return -EEXIST;
		error = rte_dev_probe(device);
		if (error)
			return error;
		*step = 1;
	}
	error = rte_eth_dev_get_port_by_name(name, port);
	if (error)
		return error;
	*step = 1;
	memset(&conf, 0, sizeof(conf));
	error = rte_eth_dev_info_get(*port, &info);
	if (error)
		return error;
	*most = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	/* It writes the descriptors of all queues into a message, however few of them that has room for. */
	if (strcmp(info.driver_name, "net_tap") == 0)
		*most = RTE_MIN(*most, RTE_MP_MAX_FD_NUM / 2);
	if (*most < queues)
		return -ERANGE;
	/* A card divides flows among its queues if it is told to; the others do it by themselves. */
	if (queues > 1 && !device) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf =
			info.flow_type_rss_offloads &
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP);
	}
	if (queues == 1 && *led > 1 && knows_rules(*port))
		all = RTE_MIN(*led, *most);
	*led = all;
	/* Drivers may want as many queues to send by. */
	error = rte_eth_dev_configure(*port, all, all, &conf);
	if (!error)
		error = rte_eth_dev_adjust_nb_rx_tx_desc(*port, &rx, &tx);
	if (!error)
		error = rte_eth_dev_adjust_nb_rx_tx_desc(*port, &led_rx, &led_tx);
	socket = rte_eth_dev_socket_id(*port);
	for (uint16_t queue = 0; queue < all && !error; queue++) {
		int own = queue < queues;

		error = rte_eth_rx_queue_setup(*port, queue, own ? rx : led_rx, socket, NULL,
					       pools[own ? queue : queues - 1]->mempool);
		if (!error)
			error = rte_eth_tx_queue_setup(*port, queue, own ? tx : led_tx, socket, NULL);
	}
	if (!error)
		error = rte_eth_dev_start(*port);
	if (error)
		return error;
	/* Frames for other MAC addresses are for the plane to judge; a port of memory has no such mode. */
	rte_eth_promiscuous_enable(*port);
	/* Only after the start does every driver know. */
	if (rte_eth_dev_info_get(*port, &info) == 0)
		*interface = info.if_index;
	return 0;
}

void weir_dpdk_close(uint16_t port, const char *name)
{
	rte_eth_dev_stop(port);
	/* Closes the port, and lets the name be used again. What is no virtual device stays DPDK's. */
	if (rte_eal_hotplug_remove("vdev", name) < 0 && rte_eth_dev_is_valid_port(port))
		rte_eth_dev_close(port);
}

/* Frames that were lost on their way in. */
void weir_dpdk_missed(uint16_t port, uint64_t *full, uint64_t *no_buffer)
{
	struct rte_eth_stats stats;

	memset(&stats, 0, sizeof(stats));
	if (rte_eth_stats_get(port, &stats) == 0) {
		*full = stats.imissed;
		*no_buffer = stats.rx_nombuf;
	}
}

/* Gives a port the address of another one, if that has any. */
void weir_dpdk_copy_mac(uint16_t from, uint16_t to)
{
	struct rte_ether_addr mac;

	if (rte_eth_macaddr_get(from, &mac) == 0 && rte_is_valid_assigned_ether_addr(&mac))
		rte_eth_dev_default_mac_addr_set(to, &mac);
}

/* 2: up, 1: down, 0: gone. */
int weir_dpdk_link(uint16_t port)
{
	struct rte_eth_link link;

	if (!rte_eth_dev_is_valid_port(port) || rte_eth_dev_is_removed(port))
		return 0;
	memset(&link, 0, sizeof(link));
	if (rte_eth_link_get_nowait(port, &link) < 0)
		return 0;
	return link.link_status ? 2 : 1;
}

uint16_t weir_dpdk_receive(uint16_t port, uint16_t queue, const struct weir_pool *pool,
			   struct weir_frame *frames, uint16_t room, uint64_t *foreign)
{
	struct rte_mbuf *got[BURST];
	uint16_t count = rte_eth_rx_burst(port, queue, got, RTE_MIN(room, BURST)), kept = 0;

	for (uint16_t at = 0; at < count; at++) {
		struct rte_mbuf *mbuf = got[at];
		uint8_t *begin = rte_pktmbuf_mtod(mbuf, uint8_t *);

		/* In pieces, or not of this memory: the plane could not read it. */
		if (unlikely(mbuf->nb_segs != 1 || mbuf->pool != pool->mempool)) {
			rte_pktmbuf_free(mbuf);
			++*foreign;
			continue;
		}
		/* A ring hands over what was sent into it, which may have grown to the front. */
		if (unlikely(mbuf->data_off < RTE_PKTMBUF_HEADROOM)) {
			uint8_t *to = (uint8_t *)mbuf->buf_addr + RTE_PKTMBUF_HEADROOM;

			if (RTE_PKTMBUF_HEADROOM + mbuf->data_len > mbuf->buf_len) {
				rte_pktmbuf_free(mbuf);
				++*foreign;
				continue;
			}
			memmove(to, begin, mbuf->data_len);
			mbuf->data_off = RTE_PKTMBUF_HEADROOM;
			begin = to;
		}
		frames[kept].mbuf = mbuf;
		frames[kept].at = begin - pool->base;
		frames[kept].len = mbuf->data_len;
		kept++;
	}
	return kept;
}

/* Sends frames where they now are; returns how many were. The others' buffers are free. */
uint16_t weir_dpdk_send(uint16_t port, uint16_t queue, const struct weir_pool *pool,
			const struct weir_frame *frames, uint16_t count)
{
	struct rte_mbuf *out[BURST];
	uint16_t fit = 0, sent;

	for (uint16_t at = 0; at < count && at < BURST; at++) {
		struct rte_mbuf *mbuf = frames[at].mbuf;
		ptrdiff_t off = pool->base + frames[at].at - (uint8_t *)mbuf->buf_addr;

		if (unlikely(off < 0 || off + (ptrdiff_t)frames[at].len > mbuf->buf_len)) {
			rte_pktmbuf_free(mbuf);
			continue;
		}
		mbuf->data_off = off;
		mbuf->data_len = frames[at].len;
		mbuf->pkt_len = frames[at].len;
		out[fit++] = mbuf;
	}
	sent = rte_eth_tx_burst(port, queue, out, fit);
	if (unlikely(sent < fit))
		rte_pktmbuf_free_bulk(out + sent, fit - sent);
	return sent;
}

void weir_dpdk_free(const struct weir_frame *frames, uint16_t count)
{
	for (uint16_t at = 0; at < count; at++)
		rte_pktmbuf_free(frames[at].mbuf);
}

/* A frame of these bytes. */
int weir_dpdk_make(const struct weir_pool *pool, const uint8_t *bytes, uint16_t len, struct weir_frame *frame)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool->mempool);
	uint8_t *to;

	if (!mbuf)
		return ENOBUFS;
	to = (uint8_t *)rte_pktmbuf_append(mbuf, len);
	if (!to) {
		rte_pktmbuf_free(mbuf);
		return EMSGSIZE;
	}
	memcpy(to, bytes, len);
	frame->mbuf = mbuf;
	frame->at = to - pool->base;
	frame->len = len;
	return 0;
}

/* A flow and the queue that its packets go to: addresses and ports as on the wire. */
struct weir_rule {
	uint8_t src[16];
	uint8_t dst[16];
	uint16_t src_port;
	uint16_t dst_port;
	uint8_t ipv6;
	uint8_t protocol;
	uint16_t queue;
};

/* Why a driver refuses a rule, in its words. */
static int refused(int error, const struct rte_flow_error *said, char *why, size_t room)
{
	if (error >= 0)
		error = rte_errno ? -rte_errno : -EINVAL;
	snprintf(why, room, "%s", said->message ? said->message : rte_strerror(-error));
	return error;
}

/* Asks a port's driver whether it takes a rule, and then for it. `step` is 0 if it is of a kind that the driver
 * does not take, 1 if it could not be made. */
int weir_dpdk_rule_make(uint16_t port, const struct weir_rule *wanted, struct rte_flow **rule, int *step, char *why,
			size_t room)
{
	struct rte_flow_attr attr = { .ingress = 1 };
	struct rte_flow_item_ipv4 ipv4 = { 0 }, ipv4_mask = { 0 };
	struct rte_flow_item_ipv6 ipv6 = { 0 }, ipv6_mask = { 0 };
	struct rte_flow_item_tcp tcp = { 0 }, tcp_mask = { 0 };
	struct rte_flow_item_udp udp = { 0 }, udp_mask = { 0 };
	struct rte_flow_item_sctp sctp = { 0 }, sctp_mask = { 0 };
	struct rte_flow_action_queue queue = { .index = wanted->queue };
	struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &ipv4, .mask = &ipv4_mask },
		{ .type = RTE_FLOW_ITEM_TYPE_TCP, .spec = &tcp, .mask = &tcp_mask },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error said;
	int error;

	*step = 0;
	*rule = NULL;
	memset(&said, 0, sizeof(said));
	if (wanted->ipv6) {
		memcpy(&ipv6.hdr.src_addr, wanted->src, 16);
		memcpy(&ipv6.hdr.dst_addr, wanted->dst, 16);
		memset(&ipv6_mask.hdr.src_addr, 0xff, 16);
		memset(&ipv6_mask.hdr.dst_addr, 0xff, 16);
		pattern[1].type = RTE_FLOW_ITEM_TYPE_IPV6;
		pattern[1].spec = &ipv6;
		pattern[1].mask = &ipv6_mask;
	} else {
		memcpy(&ipv4.hdr.src_addr, wanted->src + 12, 4);
		memcpy(&ipv4.hdr.dst_addr, wanted->dst + 12, 4);
		ipv4_mask.hdr.src_addr = ipv4_mask.hdr.dst_addr = RTE_BE32(0xffffffff);
	}
	if (wanted->protocol == IPPROTO_UDP) {
		udp.hdr.src_port = wanted->src_port;
		udp.hdr.dst_port = wanted->dst_port;
		udp_mask.hdr.src_port = udp_mask.hdr.dst_port = RTE_BE16(0xffff);
		pattern[2].type = RTE_FLOW_ITEM_TYPE_UDP;
		pattern[2].spec = &udp;
		pattern[2].mask = &udp_mask;
	} else if (wanted->protocol == IPPROTO_SCTP) {
		sctp.hdr.src_port = wanted->src_port;
		sctp.hdr.dst_port = wanted->dst_port;
		sctp_mask.hdr.src_port = sctp_mask.hdr.dst_port = RTE_BE16(0xffff);
		pattern[2].type = RTE_FLOW_ITEM_TYPE_SCTP;
		pattern[2].spec = &sctp;
		pattern[2].mask = &sctp_mask;
	} else {
		tcp.hdr.src_port = wanted->src_port;
		tcp.hdr.dst_port = wanted->dst_port;
		tcp_mask.hdr.src_port = tcp_mask.hdr.dst_port = RTE_BE16(0xffff);
	}
	rte_errno = 0;
	error = rte_flow_validate(port, &attr, pattern, actions, &said);
	if (error)
		return refused(error, &said, why, room);
	*step = 1;
	memset(&said, 0, sizeof(said));
	rte_errno = 0;
	*rule = rte_flow_create(port, &attr, pattern, actions, &said);
	return *rule ? 0 : refused(0, &said, why, room);
}

/* Asks for a rule for all that no other one is for, which leads to the first queue. */
int weir_dpdk_rule_rest(uint16_t port, struct rte_flow **rule, char *why, size_t room)
{
	struct rte_flow_attr attr = { .ingress = 1, .priority = 1 };
	struct rte_flow_action_queue queue = { .index = 0 };
	struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error said;
	int error;

	*rule = NULL;
	memset(&said, 0, sizeof(said));
	rte_errno = 0;
	error = rte_flow_validate(port, &attr, pattern, actions, &said);
	if (error)
		return refused(error, &said, why, room);
	memset(&said, 0, sizeof(said));
	rte_errno = 0;
	*rule = rte_flow_create(port, &attr, pattern, actions, &said);
	return *rule ? 0 : refused(0, &said, why, room);
}

/* Takes a rule away; it is there still if the driver refuses. */
int weir_dpdk_rule_end(uint16_t port, struct rte_flow *rule, char *why, size_t room)
{
	struct rte_flow_error said;
	int error;

	memset(&said, 0, sizeof(said));
	rte_errno = 0;
	error = rte_flow_destroy(port, rule, &said);
	return error ? refused(error, &said, why, room) : 0;
}
