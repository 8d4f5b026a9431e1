#ifndef NV_P2P_H
#define NV_P2P_H
#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00010002
struct nvidia_p2p_page_table { unsigned int version; unsigned int entries; };
int nvidia_p2p_get_pages(struct nvidia_p2p_page_table **table);
int nvidia_p2p_put_pages(struct nvidia_p2p_page_table *table);
#endif
