package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// listenIn listens on a TCP port of another network namespace: on port if it is
// free there, else on any.
func listenIn(ctx context.Context, namespace int, address netip.Addr, port uint16) (net.Listener, error) {
	type answer struct {
		l   net.Listener
		err error
	}
	c := make(chan answer)
	go func() {
		runtime.LockOSThread()
		l, home, err := listenThere(ctx, namespace, address, port)
		if home {
			runtime.UnlockOSThread()
		}
		c <- answer{l: l, err: err}
	}()
	a := <-c
	return a.l, a.err
}

// listenThere is listenIn on the thread of the caller, who has locked it. home means that the
// thread is back in its namespace. It has to go back: a goroutine ends with its thread, except for
// the first thread of a process, which stays, and by which others find the process' network
// namespace.
func listenThere(ctx context.Context, namespace int, address netip.Addr, port uint16) (l net.Listener, home bool, err error) {
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, true, fmt.Errorf("open own network namespace: %w", err)
	}
	defer func() { _ = unix.Close(own) }()
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		return nil, true, fmt.Errorf("enter network namespace: %w", err)
	}
	var lc net.ListenConfig
	l, err = lc.Listen(ctx, "tcp4", netip.AddrPortFrom(address, port).String())
	if errors.Is(err, unix.EADDRINUSE) {
		l, err = lc.Listen(ctx, "tcp4", netip.AddrPortFrom(address, 0).String())
	}
	if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil, false, errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	return l, true, err
}

// forward takes connections until ctx ends and hands each on to target.
func forward(ctx context.Context, l net.Listener, target func() string, logger *slog.Logger) {
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		c, err := l.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of files, most likely: give back some first
			logger.Warn("connection not accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go func() {
			to := target()
			if err := forwardOne(ctx, c.(*net.TCPConn), to); err != nil {
				logger.Debug("connection not forwarded", "target", to, "err", err)
			}
		}()
	}
}

func forwardOne(ctx context.Context, client *net.TCPConn, target string) error {
	defer func() { _ = client.Close() }()
	s, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", target)
	if err != nil {
		return err
	}
	server := s.(*net.TCPConn)
	defer func() { _ = server.Close() }()
	var wg sync.WaitGroup
	way := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			// One way broken is both broken.
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = to.CloseWrite()
	}
	wg.Go(func() { way(server, client) })
	wg.Go(func() { way(client, server) })
	wg.Wait()
	return nil
}
