package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// nodePID is the first process of the cluster's node.
func (s *Side) nodePID(ctx context.Context) (int, error) {
	status, err := s.world.Lab.Status(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range status.Clusters {
		for _, n := range c.Nodes {
			if n.Name == s.Node() && n.PID > 0 {
				return n.PID, nil
			}
		}
	}
	return 0, fmt.Errorf("node %s does not run", s.Node())
}

// NodeRoot is the root directory of the cluster's node, as this machine sees it.
func (s *Side) NodeRoot(ctx context.Context) (string, error) {
	pid, err := s.nodePID(ctx)
	return fmt.Sprintf("/proc/%d/root", pid), err
}

// nodeNetwork is the network namespace of the cluster's node.
func (s *Side) nodeNetwork(ctx context.Context) (string, error) {
	pid, err := s.nodePID(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/ns/net", pid), nil
}

// podNetwork is the network namespace of the pod that has an address, on the
// cluster's node.
func (s *Side) podNetwork(ctx context.Context, address string) (string, error) {
	pid, err := s.nodePID(ctx)
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/*", pid))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		var found bool
		err := inNetwork(file, func() error {
			addresses, err := net.InterfaceAddrs()
			for _, a := range addresses {
				if n, ok := a.(*net.IPNet); ok && n.IP.String() == address {
					found = true
				}
			}
			return err
		})
		if err == nil && found {
			return file, nil
		}
	}
	return "", fmt.Errorf("no pod on node %s has the address %s", s.Node(), address)
}

// DialOnNode dials from the network namespace of the cluster's node.
func (s *Side) DialOnNode(ctx context.Context, network, address string) (net.Conn, error) {
	file, err := s.nodeNetwork(ctx)
	if err != nil {
		return nil, err
	}
	return dialIn(ctx, file, network, address)
}

// DialFromPod dials from the pod that has an address, on the cluster's node.
func (s *Side) DialFromPod(ctx context.Context, from, network, address string) (net.Conn, error) {
	file, err := s.podNetwork(ctx, from)
	if err != nil {
		return nil, err
	}
	return dialIn(ctx, file, network, address)
}

// DialOnInternet dials from the router between the clusters.
func (w *World) DialOnInternet(ctx context.Context, network, address string) (net.Conn, error) {
	status, err := w.Lab.Status(ctx)
	if err != nil {
		return nil, err
	}
	return dialIn(ctx, fmt.Sprintf("/proc/%d/ns/net", status.Daemon), network, address)
}

// dialIn dials an IP address, not a name, which would start goroutines.
func dialIn(ctx context.Context, file, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNetwork(file, func() error {
		var err error
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

const (
	// packetEvery is how often a stream sends a packet.
	packetEvery = 5 * time.Millisecond
	// packetLate is how long an answer may take before its packet counts as lost.
	packetLate = 2 * time.Second
	packetSize = 200
	// EchoPort is where the lab's server echoes, over TCP and UDP.
	EchoPort = 8081
)

// Stream is traffic between two pods: numbered UDP packets, each of which has to come back, and a
// TCP connection with the same traffic.
type Stream struct {
	udp, tcp net.Conn
	stop     chan struct{}
	done     sync.WaitGroup

	mu       sync.Mutex
	sent     uint64
	returned map[uint64]bool
	tcpSent  int
	tcpErr   error
	last     time.Time
	longest  time.Duration
	pause    time.Duration
}

// StreamResult is the result of a stream.
type StreamResult struct {
	Sent, Lost int
	// LostNumbers are the first few that did not come back.
	LostNumbers []uint64
	// Exchanges on the TCP connection, and what broke it.
	Exchanges int
	TCPError  error
	// Longest is the longest pause between two UDP packets that came back.
	Longest time.Duration
}

// StartStream starts traffic from the pod of this cluster that has an address to
// the echo server of a pod at another address.
func (s *Side) StartStream(ctx context.Context, from, to string) (*Stream, error) {
	file, err := s.podNetwork(ctx, from)
	if err != nil {
		return nil, err
	}
	t := &Stream{stop: make(chan struct{}), returned: map[uint64]bool{}, last: time.Now()}
	address := net.JoinHostPort(to, strconv.Itoa(EchoPort))
	if t.udp, err = dialIn(ctx, file, "udp", address); err != nil {
		return nil, err
	}
	if t.tcp, err = dialIn(ctx, file, "tcp", address); err != nil {
		_ = t.udp.Close()
		return nil, err
	}
	t.done.Go(t.send)
	t.done.Go(t.receive)
	t.done.Go(t.talk)
	return t, nil
}

func (t *Stream) send() {
	tick := time.NewTicker(packetEvery)
	defer tick.Stop()
	packet := make([]byte, packetSize)
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		n := t.sent
		t.sent++
		t.mu.Unlock()
		binary.BigEndian.PutUint64(packet, n)
		_, _ = t.udp.Write(packet) // what is refused does not come back
	}
}

func (t *Stream) receive() {
	packet := make([]byte, 2*packetSize)
	for {
		n, err := t.udp.Read(packet)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error
		}
		if n != packetSize {
			continue
		}
		t.mu.Lock()
		t.returned[binary.BigEndian.Uint64(packet)] = true
		pause := time.Since(t.last)
		t.longest, t.pause, t.last = max(t.longest, pause), max(t.pause, pause), time.Now()
		t.mu.Unlock()
	}
}

// talk sends on the TCP connection and waits for it to come back, in turn.
func (t *Stream) talk() {
	out, in := []byte("are you there?"), make([]byte, 14)
	for {
		select {
		case <-t.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		// When nothing passed for a while TCP waits up to twice as long before it tries again, and a
		// kubelet waits for up to a minute and more before it starts again what was killed often.
		_ = t.tcp.SetDeadline(time.Now().Add(4 * time.Minute))
		_, err := t.tcp.Write(out)
		if err == nil {
			_, err = io.ReadFull(t.tcp, in)
		}
		t.mu.Lock()
		t.tcpSent++
		t.tcpErr = err
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Exchanged is how often the TCP connection was answered so far, and what broke it.
func (t *Stream) Exchanged() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tcpSent, t.tcpErr
}

// Pause is the longest time without a UDP packet that came back, since it was last asked. What has not ended yet counts
// so far, and again when it has.
func (t *Stream) Pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	pause := max(t.pause, time.Since(t.last))
	t.pause = 0
	return pause
}

// Stop ends the traffic, waits for what is on its way, and says what was lost.
func (t *Stream) Stop() StreamResult {
	close(t.stop)
	time.Sleep(packetLate)
	_ = t.udp.Close()
	_ = t.tcp.Close()
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	r := StreamResult{Sent: int(t.sent), Exchanges: t.tcpSent, TCPError: t.tcpErr, Longest: t.longest.Round(time.Millisecond)}
	for n := range t.sent {
		if !t.returned[n] {
			r.Lost++
			if len(r.LostNumbers) < 20 {
				r.LostNumbers = append(r.LostNumbers, n)
			}
		}
	}
	return r
}

// String is the result for people.
func (r StreamResult) String() string {
	text := fmt.Sprintf("%d UDP packets sent, %d lost, longest pause %s; %d exchanges on one TCP connection", r.Sent, r.Lost, r.Longest, r.Exchanges)
	if r.Lost > 0 {
		text += fmt.Sprintf("; lost were %v", r.LostNumbers)
	}
	if r.TCPError != nil {
		text += "; it broke: " + r.TCPError.Error()
	}
	return text
}

// memory is the resident set of a process, in bytes.
func memory(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseUint(field(string(b), "VmRSS:"), 10, 64)
	return kib << 10, err
}

// ListenOnNode listens at an IP address in the network namespace of the cluster's node.
func (s *Side) ListenOnNode(ctx context.Context, network, address string) (net.Listener, error) {
	file, err := s.nodeNetwork(ctx)
	if err != nil {
		return nil, err
	}
	var l net.Listener
	err = inNetwork(file, func() error {
		var err error
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacketOnNode listens for packets at an address in the network namespace of the
// cluster's node.
func (s *Side) ListenPacketOnNode(ctx context.Context, network, address string) (net.PacketConn, error) {
	file, err := s.nodeNetwork(ctx)
	if err != nil {
		return nil, err
	}
	var c net.PacketConn
	err = inNetwork(file, func() error {
		var err error
		c, err = new(net.ListenConfig).ListenPacket(ctx, network, address)
		return err
	})
	return c, err
}

// InNetworkOf runs a command of this machine in the network namespace of the pod that has
// an address, on the cluster's node.
func (s *Side) InNetworkOf(ctx context.Context, address string, argv ...string) (string, error) {
	file, err := s.podNetwork(ctx, address)
	if err != nil {
		return "", err
	}
	args := append([]string{"--net=" + file, "--"}, argv...)
	return capture(exec.CommandContext(ctx, "nsenter", args...), Line("nsenter", args...), watcher(ctx))
}
