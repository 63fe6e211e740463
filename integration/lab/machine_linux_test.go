package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/integration/eventually"
)

func TestMarkedProcessesAreFoundAndKilled(t *testing.T) {
	const name = "markedtest"
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append(os.Environ(), labMark(name))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	other := exec.Command("sleep", "1000")
	other.Env = append(os.Environ(), labMark(name+"x"))
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	err := eventually.Poll(t.Context(), 10*time.Millisecond, func() bool {
		pids, err := markedProcesses(name)
		return err == nil && slices.Equal(pids, []int{cmd.Process.Pid})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := killMarked(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the marked process ended by itself")
	}
	if err := other.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("another lab's process: %v", err)
	}
}

func TestAncestorsReachTheFirstProcess(t *testing.T) {
	a := ancestors(os.Getpid())
	if !a[os.Getpid()] || !a[os.Getppid()] {
		t.Errorf("ancestors are %v", a)
	}
}

// Others enter the daemon's network namespace by its process, which is where its first thread is.
func TestListeningInANamespaceKeepsTheProcessInItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	other := exec.Command("sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	elsewhere, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", other.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(elsewhere)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		l, err := listenIn(t.Context(), elsewhere, netip.IPv4Unspecified(), 0)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
			t.Fatalf("the process was in %s and is in %s: %v", before, after, err)
		}
	}
}

func TestForwarderPassesHalfClosedConnections(t *testing.T) {
	target, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		c, err := target.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c) // until the client has said all
		_, _ = c.Write([]byte(strings.ToUpper(string(b))))
	}()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		forward(ctx, l, func() string { return target.Addr().String() }, slog.New(slog.DiscardHandler))
		close(done)
	}()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "HELLO" {
		t.Errorf("answer is %q, %v", b, err)
	}
	cancel()
	<-done
}

func TestForwarderClosesWithoutABackend(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go forward(t.Context(), l, func() string { return "127.0.0.1:1" }, slog.New(slog.DiscardHandler))
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("answer is %q", b)
	}
}

func TestSupervisorRestartsAndKeepsOrder(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	made := filepath.Join(dir, "made")
	s := &supervisor{
		logDir: filepath.Join(dir, "log"), mark: labMark("supervised"), logger: slog.New(slog.DiscardHandler),
		processes: []process{
			{Name: "short", Args: []string{"sh", "-c", "echo run; exit 3"}},
			{Name: "after", Args: []string{"sh", "-c", "cat " + made + " && exec sleep 1000"}, After: []condition{{Step: "make"}}},
		},
		steps: []step{{name: "make", do: func(context.Context) error { return os.WriteFile(made, []byte("made\n"), 0o644) }}},
	}
	done := make(chan error, 1)
	runCtx, stop := context.WithCancel(ctx)
	go func() { done <- s.run(runCtx) }()
	err := eventually.Poll(ctx, 20*time.Millisecond, func() bool {
		states := s.snapshot()
		return len(states) == 2 && states[0].Restarts >= 2 && states[0].Last == "exit status 3" && states[1].Running
	})
	if err != nil {
		t.Fatalf("states are %+v: %v", s.snapshot(), err)
	}
	pid := s.snapshot()[1].PID
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped supervisor: %v", err)
	}
	if err := unix.Kill(pid, 0); err == nil {
		t.Errorf("process %d is still there", pid)
	}
	if b := mustRead(t, filepath.Join(dir, "log", "short.log")); strings.Count(string(b), "run\n") < 2 {
		t.Errorf("log is %q", b)
	}
	if b := mustRead(t, filepath.Join(dir, "log", "after.log")); string(b) != "made\n" {
		t.Errorf("log of the one that waits is %q", b)
	}
}

func TestSupervisorEndsWhenAStepFails(t *testing.T) {
	s := &supervisor{
		logDir: t.TempDir(), mark: labMark("supervised"), logger: slog.New(slog.DiscardHandler),
		processes: []process{{Name: "p", Args: []string{"sleep", "1000"}}},
		steps:     []step{{name: "break", do: func(context.Context) error { return io.ErrUnexpectedEOF }}},
	}
	err := s.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "break: unexpected EOF") {
		t.Errorf("run ends with %v", err)
	}
}

func FuzzPacketID(f *testing.F) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: nfqaPacketHeader, Data: binary.BigEndian.AppendUint32(nil, 7)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(nfgenHeader(1), attrs...))
	f.Add([]byte{0, 0, 0, 1, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		packetID(netlink.Message{Header: netlink.Header{Type: nfqnlMsgPacket}, Data: b}) // must not panic
	})
}

func TestPacketIDIsRead(t *testing.T) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 9, Data: []byte{1}},
		{Type: nfqaPacketHeader, Data: []byte{0, 0, 1, 2, 0, 0, 0}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := netlink.Message{Header: netlink.Header{Type: nfqnlMsgPacket}, Data: append(nfgenHeader(1), attrs...)}
	if id, ok := packetID(m); !ok || id != 0x102 {
		t.Errorf("packet number is %d, %v", id, ok)
	}
	m.Header.Type = nfqnlMsgVerdict
	if _, ok := packetID(m); ok {
		t.Error("another message is taken for a packet")
	}
}
