package tunnel

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	batch "golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// The load generator measures what iperf3 and netperf do. It uses blocking system calls on
// threads of their own where time counts, so that no scheduler but the kernel's is part of a
// round trip.

const trafficPort = 8090

// trafficKind is the kind of a measurement.
type trafficKind string

const (
	trafficStream      trafficKind = "stream"      // bytes over TCP streams
	trafficRoundTrips  trafficKind = "round trips" // one small request and answer at a time, on a connection
	trafficConnections trafficKind = "connections" // a connection for each request and answer
	trafficPackets     trafficKind = "packets"     // small UDP packets, as many as are wanted
)

// traffic is one measurement, as its client gets it.
type traffic struct {
	Kind trafficKind
	To   netip.Addr
	// For is how long it takes.
	For time.Duration
	// Streams is the number of connections at once.
	Streams int
	// Size is that of requests, answers and packets, without headers.
	Size int
	// Rate is the number of packets a second; 0 is as many as go out.
	Rate int
}

// trafficResult is the result of a measurement.
type trafficResult struct {
	Took time.Duration
	// Count is bytes, round trips, connections, or packets that arrived; Sent is packets.
	Count, Sent int64
	// Trips are how long the round trips took, sorted.
	Trips []time.Duration
}

func (r trafficResult) rate() float64 { return float64(r.Count) / r.Took.Seconds() }

func (r trafficResult) mean() time.Duration {
	var sum time.Duration
	for _, t := range r.Trips {
		sum += t
	}
	return sum / time.Duration(max(1, len(r.Trips)))
}

func (r trafficResult) quantile(q float64) time.Duration {
	if len(r.Trips) == 0 {
		return 0
	}
	return r.Trips[min(len(r.Trips)-1, int(q*float64(len(r.Trips))))]
}

// The first byte of a client on a connection.
const (
	wantSink  = 's' // counts the bytes until the end, and returns the count
	wantEcho  = 'e' // sends all back
	wantCount = 'c' // returns how many packets have come over UDP since the last request
)

// roleTrafficServer answers the clients of measurements.
func roleTrafficServer(ctx context.Context) error {
	var lc net.ListenConfig
	at := fmt.Sprintf(":%d", trafficPort)
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return err
	}
	u, err := lc.ListenPacket(ctx, "udp4", at)
	if err != nil {
		return err
	}
	_ = u.(*net.UDPConn).SetReadBuffer(8 << 20)
	var packets atomic.Int64
	go countPackets(u, &packets)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := c.(*net.TCPConn).File() // a descriptor that blocks
		_ = c.Close()
		if err != nil {
			return err
		}
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer f.Close()
			_ = serveTraffic(int(f.Fd()), &packets)
		}()
	}
}

func countPackets(u net.PacketConn, packets *atomic.Int64) {
	const many = 64
	in := batch.NewPacketConn(u)
	messages := make([]batch.Message, many)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, 2048)}
	}
	for {
		n, err := in.ReadBatch(messages, 0)
		if err != nil {
			return
		}
		packets.Add(int64(n))
	}
}

func serveTraffic(fd int, packets *atomic.Int64) error {
	buf := make([]byte, 1<<17)
	if _, err := read(fd, buf[:1]); err != nil {
		return err
	}
	said, total := buf[0], int64(0)
	for {
		n, err := read(fd, buf)
		if err != nil || n == 0 {
			break
		}
		total += int64(n)
		switch said {
		case wantEcho:
			if err := writeAll(fd, buf[:n]); err != nil {
				return err
			}
		case wantCount:
			if err := writeAll(fd, binary.BigEndian.AppendUint64(nil, uint64(packets.Swap(0)))); err != nil {
				return err
			}
		}
	}
	if said == wantSink {
		return writeAll(fd, binary.BigEndian.AppendUint64(nil, uint64(total)))
	}
	return nil
}

// roleTrafficClient does one measurement and prints its result.
func roleTrafficClient() error {
	var l traffic
	if err := json.Unmarshal([]byte(os.Getenv("TUNNEL_TEST_TRAFFIC")), &l); err != nil {
		return err
	}
	var r trafficResult
	var err error
	switch l.Kind {
	case trafficStream:
		r, err = l.stream()
	case trafficRoundTrips:
		r, err = l.roundTrips()
	case trafficConnections:
		r, err = l.connections()
	case trafficPackets:
		r, err = l.packets()
	}
	if err != nil {
		return err
	}
	slices.Sort(r.Trips)
	return json.NewEncoder(os.Stdout).Encode(r)
}

// dial connects with a socket that blocks, and sends the kind of the measurement.
func (l traffic) dial(say ...byte) (fd int, err error) {
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: trafficPort})
	if l.To.Is4() {
		to.(*unix.SockaddrInet4).Addr = l.To.As4()
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: trafficPort, Addr: l.To.As16()}
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	patience := unix.NsecToTimeval(int64(10 * time.Second))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience))
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if errors.Is(err, unix.EINTR) { // the connection is made all the same
		err = connected(fd)
	}
	if err == nil {
		err = writeAll(fd, say)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("dial %v: %w", l.To, err), unix.Close(fd))
	}
	return fd, nil
}

// connected waits for a connection that is being made.
func connected(fd int) error {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if _, err := uninterrupted(func() (int, error) { return unix.Poll(ready, 10_000) }); err != nil {
		return err
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// uninterrupted repeats a system call that a signal of Go's scheduler ended: one with a time
// limit is not repeated by the kernel.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func read(fd int, b []byte) (int, error) {
	return uninterrupted(func() (int, error) { return unix.Read(fd, b) })
}

// writeAll writes all of it.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := uninterrupted(func() (int, error) { return unix.Write(fd, b) })
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b = b[n:]
	}
	return nil
}

// readFull reads as many bytes as there is room for.
func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := read(fd, b)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		b = b[n:]
	}
	return nil
}

// each does something on a thread of its own for each stream, and adds up the results.
func (l traffic) each(do func() (trafficResult, error)) (trafficResult, error) {
	var mu sync.Mutex
	var sum trafficResult
	var errs []error
	var wg sync.WaitGroup
	began := time.Now()
	for range max(1, l.Streams) {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := do()
			mu.Lock()
			defer mu.Unlock()
			sum.Count += r.Count
			sum.Trips = append(sum.Trips, r.Trips...)
			errs = append(errs, err)
		})
	}
	wg.Wait()
	sum.Took = time.Since(began)
	return sum, errors.Join(errs...)
}

func (l traffic) stream() (trafficResult, error) {
	return l.each(func() (trafficResult, error) {
		fd, err := l.dial(wantSink)
		if err != nil {
			return trafficResult{}, err
		}
		defer unix.Close(fd)
		buf := make([]byte, 1<<17)
		for end := time.Now().Add(l.For); time.Now().Before(end); {
			if err := writeAll(fd, buf); err != nil {
				return trafficResult{}, err
			}
		}
		if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
			return trafficResult{}, err
		}
		var total [8]byte
		if err := readFull(fd, total[:]); err != nil {
			return trafficResult{}, fmt.Errorf("read how much arrived: %w", err)
		}
		return trafficResult{Count: int64(binary.BigEndian.Uint64(total[:]))}, nil
	})
}

func (l traffic) roundTrips() (trafficResult, error) {
	return l.each(func() (trafficResult, error) {
		fd, err := l.dial(wantEcho)
		if err != nil {
			return trafficResult{}, err
		}
		defer unix.Close(fd)
		var r trafficResult
		buf := make([]byte, l.Size)
		for end := time.Now().Add(l.For); ; {
			began := time.Now()
			if !began.Before(end) {
				return r, nil
			}
			if err := writeAll(fd, buf); err != nil {
				return r, err
			}
			if err := readFull(fd, buf); err != nil {
				return r, fmt.Errorf("read: %w", err)
			}
			r.Count++
			r.Trips = append(r.Trips, time.Since(began))
		}
	})
}

func (l traffic) connections() (trafficResult, error) {
	return l.each(func() (trafficResult, error) {
		var r trafficResult
		request, answer := append([]byte{wantEcho}, make([]byte, l.Size)...), make([]byte, l.Size)
		for end := time.Now().Add(l.For); time.Now().Before(end); r.Count++ {
			fd, err := l.dial(request...)
			if err != nil {
				return r, err
			}
			err = readFull(fd, answer)
			if err := errors.Join(err, unix.Close(fd)); err != nil {
				return r, fmt.Errorf("read: %w", err)
			}
		}
		return r, nil
	})
}

func (l traffic) packets() (trafficResult, error) {
	control, err := l.dial(wantCount)
	if err != nil {
		return trafficResult{}, err
	}
	defer unix.Close(control)
	arrived := func() (int64, error) {
		var n [8]byte
		if err := writeAll(control, n[:1]); err != nil {
			return 0, err
		}
		err := readFull(control, n[:])
		return int64(binary.BigEndian.Uint64(n[:])), err
	}
	if _, err := arrived(); err != nil { // what arrived before
		return trafficResult{}, err
	}
	c, err := net.Dial("udp", netip.AddrPortFrom(l.To, trafficPort).String())
	if err != nil {
		return trafficResult{}, err
	}
	defer c.Close()
	r := trafficResult{}
	if r.Sent, r.Took, err = l.send(c.(*net.UDPConn)); err != nil {
		return r, err
	}
	time.Sleep(300 * time.Millisecond) // for those on their way
	r.Count, err = arrived()
	return r, err
}

// send sends packets, a burst each millisecond where there is a rate.
func (l traffic) send(c *net.UDPConn) (sent int64, took time.Duration, err error) {
	const burst = 32
	out := batch.NewPacketConn(c)
	messages := make([]batch.Message, burst)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, l.Size)}
	}
	began := time.Now()
	for {
		took = time.Since(began)
		if took >= l.For {
			return sent, took, nil
		}
		due := int64(burst)
		if l.Rate > 0 {
			if due = int64(took.Seconds()*float64(l.Rate)) - sent; due <= 0 {
				time.Sleep(time.Millisecond)
				continue
			}
		}
		n, err := out.WriteBatch(messages[:min(due, burst)], 0)
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ECONNREFUSED) {
			return sent, took, err
		}
		sent += int64(max(0, n))
	}
}
