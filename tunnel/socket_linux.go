package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"
)

// listenControl opens the control socket, for this user only. One that a dead
// process left behind is removed.
func listenControl(ctx context.Context, name string) (net.Listener, error) {
	if err := os.MkdirAll(socketDirectory, 0o700); err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	path := filepath.Join(socketDirectory, name+".sock")
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil { //nolint:gosec,noctx // a socket of ours, and the end of ctx must not make it look stale
		c.Close()
		return nil, fmt.Errorf("open control socket %s: another process serves it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale control socket: %w", err)
	}
	old := unix.Umask(0o177)
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	return l, nil
}

// acceptControl serves the control socket until it is closed.
func acceptControl(ctx context.Context, l net.Listener, dev *device.Device) {
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, MaxControls)
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
			dev.IpcHandle(c)
		})
	}
}
