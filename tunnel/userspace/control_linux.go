package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"
)

// directory is where WireGuard tools look for userspace devices.
const directory = "/var/run/wireguard"

// Socket is the control socket of a device.
func Socket(device string) string { return filepath.Join(directory, device+".sock") }

// Listen opens a control socket, for this user only. One that a dead process left
// behind is replaced. Closing it leaves its file, which may be that of the next one by then.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil { //nolint:noctx // the end of ctx must not make a socket of ours look stale
		c.Close()
		return nil, fmt.Errorf("open control socket %s: another process serves it", path)
	}
	// Tools remove a socket that refuses connections, as one does until it listens: it gets its name after that.
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale control socket: %w", err)
	}
	old := unix.Umask(0o177)
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", fresh)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if err := os.Rename(fresh, path); err != nil {
		l.Close()
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	return l, nil
}

// acceptControl serves the control socket until it is closed.
func acceptControl(ctx context.Context, l net.Listener, process tunnelProcess) {
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, maxControls)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		group.Go(func() {
			defer func() { <-slots }()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			process.handle(c)
		})
	}
}

// ReportRequest asks the tunnel process, on its control socket, for what WireGuard's protocol does not have.
// The answer has the form of WireGuard's.
const ReportRequest = "get=entente\n\n"

// tunnelProcess is what the tunnel process knows of its device.
type tunnelProcess struct {
	dev     *device.Device
	refused *refusals
	// offloads reads those in use; nil reports none.
	offloads func() Offloads
}

// handle serves a control connection: one report, or any number of WireGuard's own requests.
func (p tunnelProcess) handle(c net.Conn) {
	in := bufio.NewReader(c)
	// All requests of WireGuard's protocol begin with other bytes, and none is shorter than these.
	if head, err := in.Peek(len("get=e")); err != nil || string(head) != ReportRequest[:len("get=e")] {
		p.dev.IpcHandle(readConn{c, in})
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	request := make([]byte, len(ReportRequest))
	if _, err := io.ReadFull(in, request); err != nil || string(request) != ReportRequest {
		return
	}
	_, _ = io.WriteString(c, p.report())
}

// report answers a ReportRequest.
func (p tunnelProcess) report() string {
	var b strings.Builder
	for key, n := range p.refused.read(p.dev) {
		fmt.Fprintf(&b, "public_key=%x\nrefused_packets=%d\n", key[:], n)
	}
	if p.offloads != nil {
		b.WriteString(p.offloads().lines())
	}
	return b.String() + "errno=0\n\n"
}

// readConn is a connection of which some was read before.
type readConn struct {
	net.Conn
	in io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// AskReport asks the tunnel process for its report.
func AskReport(device string) (Report, error) {
	c, err := net.DialTimeout("unix", Socket(device), answerTimeout) //nolint:noctx // bounded by its timeout
	if err != nil {
		return Report{}, fmt.Errorf("ask the tunnel process: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	if _, err := io.WriteString(c, ReportRequest); err != nil {
		return Report{}, fmt.Errorf("ask the tunnel process: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(c, maxReport))
	if err != nil {
		return Report{}, fmt.Errorf("read the report of the tunnel process: %w", err)
	}
	return parseReport(string(text))
}
