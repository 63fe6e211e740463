package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

const (
	// socketDirectory is where WireGuard tools look for userspace devices.
	socketDirectory = "/var/run/wireguard"
	// defaultMaxPackets bounds the packets in flight, and so the buffers, 64
	// KiB each.
	defaultMaxPackets = 1024
	// leastMaxPackets leaves room for the batches that are always held, three
	// of 128, and for one more in the last quarter.
	leastMaxPackets = 768
	// reviveAfter is the pause before a device that was lost is made again.
	reviveAfter = 500 * time.Millisecond
	// reliefEvery is how often buffers are watched, listIdleEvery how often
	// the peers without a session are listed.
	reliefEvery   = 20 * time.Millisecond
	listIdleEvery = time.Second
)

// UserspaceConfig is what the tunnel process is told.
type UserspaceConfig struct {
	// Device is the name of the device. Default "entente0".
	Device string
	// MaxPackets bounds the packets that are in the process at one time; each
	// takes a buffer of 64 KiB. Default 1024, which is 64 MiB; at least 768.
	MaxPackets int
	// Userspace makes the device even if the kernel has WireGuard.
	Userspace bool
	// Log receives what goes wrong. Default: none.
	Log *slog.Logger
}

// RunUserspace is the tunnel process: it makes a TUN device, moves its packets
// with wireguard-go and lets the fabric configure it over a socket in
// /var/run/wireguard that only the same user can open, until ctx ends. It lives
// apart from the fabric so that a restart of that one loses no packet. A device
// that somebody deletes is made again.
//
// If the kernel has WireGuard the device is left to it and there is nothing to
// do but wait.
func RunUserspace(ctx context.Context, cfg UserspaceConfig) error {
	checked, err := Config{Device: cfg.Device, Log: cfg.Log}.withDefaults()
	if err != nil {
		return fmt.Errorf("configure tunnel process: %w", err)
	}
	cfg.Device, cfg.Log = checked.Device, checked.Log
	if cfg.MaxPackets == 0 {
		cfg.MaxPackets = defaultMaxPackets
	}
	if cfg.MaxPackets < leastMaxPackets {
		return fmt.Errorf("configure tunnel process: MaxPackets %d is less than %d", cfg.MaxPackets, leastMaxPackets)
	}
	if !cfg.Userspace {
		switch err := addKernelLink(cfg.Device); {
		case err == nil:
			if link, err := netlink.LinkByName(cfg.Device); err == nil && link.Type() == "wireguard" {
				cfg.Log.Info("the kernel has WireGuard, nothing to do here", "device", cfg.Device)
				<-ctx.Done()
				return nil
			}
		case !errors.Is(err, unix.EOPNOTSUPP):
			return err
		}
	}
	limitMemory(cfg.MaxPackets)
	for {
		err := serveDevice(ctx, cfg)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that the caller asked for
		}
		if err != nil {
			return fmt.Errorf("run userspace WireGuard: %w", err)
		}
		cfg.Log.Warn("the device was deleted, making it again", "device", cfg.Device)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reviveAfter):
		}
	}
}

// limitMemory makes the garbage collector work harder near the most that the
// buffers can take. Without it the heap may be twice as large, because buffers
// that were freed and others that replaced them coexist for a while. The
// variable GOMEMLIMIT goes before.
func limitMemory(packets int) {
	const rest = 32 << 20 // what is not a buffer
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(packets)*device.MaxMessageSize + rest)
	}
}

// serveDevice makes one device and serves it until ctx ends or the device is
// gone, which is no error.
func serveDevice(ctx context.Context, cfg UserspaceConfig) error {
	raw, err := tun.CreateTUN(cfg.Device, device.DefaultMTU)
	if err != nil {
		if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "does not exist") {
			return fmt.Errorf("create TUN device %s: %w: the container needs NET_ADMIN and the device /dev/net/tun, or load the kernel module wireguard", cfg.Device, err)
		}
		return fmt.Errorf("create TUN device %s: %w", cfg.Device, err)
	}
	var relief reliever
	gate := &gatedTUN{Device: raw, ready: make(chan struct{}), before: relief.flush}
	logger := &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(format string, args ...any) { cfg.Log.Error("wireguard", "text", fmt.Sprintf(format, args...)) },
	}
	dev := device.NewDevice(gate, conn.NewDefaultBind(), logger)
	defer dev.Close()
	relief.dev = dev
	relief.pool, err = boundBuffers(dev, uint32(cfg.MaxPackets))
	close(gate.ready)
	if err != nil {
		return err
	}

	listener, err := listenControl(ctx, cfg.Device)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	defer func() { listener.Close() }()
	first := listener
	group.Go(func() { acceptControl(ctx, first, dev) })
	group.Go(func() { relief.run(ctx) })
	cfg.Log.Info("userspace WireGuard runs", "device", cfg.Device, "maxPackets", cfg.MaxPackets)

	watchSocket := time.NewTicker(time.Second)
	defer watchSocket.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-dev.Wait():
			return nil
		case <-watchSocket.C:
			if _, err := os.Lstat(listener.Addr().String()); !errors.Is(err, os.ErrNotExist) {
				continue
			}
			again, err := listenControl(ctx, cfg.Device)
			if err != nil {
				return err
			}
			listener.Close()
			listener = again
			group.Go(func() { acceptControl(ctx, again, dev) })
		}
	}
}

// gatedTUN holds wireguard-go back until its buffers are bounded: its reader
// asks for the batch size before it takes any, and its bind is opened only upon
// an event.
type gatedTUN struct {
	tun.Device
	ready chan struct{}
	// before is called before each read, by the reader.
	before func()
}

func (g *gatedTUN) BatchSize() int {
	<-g.ready
	return g.Device.BatchSize()
}

func (g *gatedTUN) Events() <-chan tun.Event {
	<-g.ready
	return g.Device.Events()
}

func (g *gatedTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	g.before()
	return g.Device.Read(bufs, sizes, offset)
}
