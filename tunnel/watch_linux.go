package tunnel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// watch calls moved whenever links, addresses, routes or rules change, and poke when nftables changes,
// until ctx ends. The caller reads all of them again, so watch also calls moved when it begins, and
// either function when events were lost.
func watch(ctx context.Context, moved, poke func()) error {
	route, err := subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return fmt.Errorf("subscribe to route events: %w", err)
	}
	defer func() { _ = route.Close() }()
	nft, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nftables events: %w", err)
	}
	defer func() { _ = nft.Close() }()

	failed := make(chan error, 2)
	var group sync.WaitGroup
	group.Go(func() { failed <- drain(route, moved) })
	group.Go(func() { failed <- drain(nft, poke) })
	moved()
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	past := time.Unix(1, 0)
	_ = route.SetReadDeadline(past)
	_ = nft.SetReadDeadline(past)
	group.Wait()
	return err
}

// drain calls poke for each message.
func drain(c *netlink.Conn, poke func()) error {
	for {
		_, err := c.Receive()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS):
			poke()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		default:
			return fmt.Errorf("read netlink events: %w", err)
		}
	}
}

// subscribe receives the events of some groups, in the network namespace of the calling
// thread.
func subscribe(protocol int, groups ...uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(protocol, nil)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}
