package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watch pokes whenever something about links, addresses, routes, rules or
// nftables changes, by whomever, until ctx ends. It tells no more than that:
// the reader looks at everything anyway. Losing messages is the same as many.
func watch(ctx context.Context, poke func()) error {
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
	for _, f := range []*os.File{route, nft} {
		group.Go(func() { failed <- drain(f, poke) })
	}
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

// drain reads and forgets.
func drain(f *os.File, poke func()) error {
	buf := make([]byte, 1<<16)
	for {
		_, err := f.Read(buf)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS):
			poke()
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return fmt.Errorf("read netlink events: %w", err)
		}
	}
}

// subscribe opens a netlink socket that receives the events of some groups. It
// is of the network namespace of the calling thread.
func subscribe(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			_ = f.Close()
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return f, nil
}

// nftGeneration is a number that changes with every transaction of anybody. It
// is the first attribute of the answer to a request without parameters.
func nftGeneration() (uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	timeout := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	const header, family, attribute = unix.SizeofNlMsghdr, 4, 4
	req := make([]byte, header+family)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	if n >= header+4 && binary.NativeEndian.Uint16(buf[4:]) == unix.NLMSG_ERROR {
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(buf[header:])))
	}
	if n < header+family+attribute+4 {
		return 0, errors.New("short answer from nftables")
	}
	return binary.BigEndian.Uint32(buf[header+family+attribute:]), nil
}
