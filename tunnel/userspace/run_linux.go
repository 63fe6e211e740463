package userspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// Run is the tunnel process: it creates a TUN device, moves its packets with
// wireguard-go and lets the fabric configure it over a socket in /var/run/wireguard that
// only the same user can open, until ctx ends. It is separate from the fabric so that a
// restart of the fabric loses no packet. A deleted device is created again.
//
// If the kernel has WireGuard it creates the kernel's device and waits.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("configure tunnel process: %w", err)
	}
	ended := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ended, func() { // the fabric may be handing over its peers
		awaitFabric(cfg.Device)
		stop()
	})()
	if !cfg.Userspace {
		switch err := AddKernelDevice(cfg.Device); {
		case err == nil:
			if link, err := netlink.LinkByName(cfg.Device); err == nil && link.Type() == "wireguard" {
				cfg.Log.Info("the kernel has WireGuard, nothing to do", "device", cfg.Device)
				<-ctx.Done()
				return nil
			}
		case !errors.Is(err, unix.EOPNOTSUPP):
			return err
		}
	}
	for {
		err := serveDevice(ctx, cfg)
		if ctx.Err() != nil {
			return nil // the caller ended it
		}
		if err != nil {
			return fmt.Errorf("run userspace WireGuard: %w", err)
		}
		cfg.Log.Warn("the device was deleted, creating it again", "device", cfg.Device)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reviveAfter):
		}
	}
}

// serveDevice creates one device and serves it until ctx ends or the device is deleted,
// which is not an error.
func serveDevice(ctx context.Context, cfg Config) error {
	raw, err := tun.CreateTUN(cfg.Device, device.DefaultMTU)
	if err != nil {
		if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "does not exist") {
			return fmt.Errorf("create TUN device %s: %w: the container needs NET_ADMIN and the device /dev/net/tun, or load the kernel module wireguard", cfg.Device, err)
		}
		return fmt.Errorf("create TUN device %s: %w", cfg.Device, err)
	}
	relief := reliever{wake: make(chan struct{}, 1)}
	gate := &gatedTUN{Device: raw, ready: make(chan struct{}), before: relief.relieve}
	refused := &refusals{}
	logger := &device.Logger{
		Verbosef: refused.note,
		Errorf:   func(format string, args ...any) { cfg.Log.Error("wireguard", "text", fmt.Sprintf(format, args...)) },
	}
	bind := conn.NewDefaultBind()
	dev := device.NewDevice(gate, bind, logger)
	defer dev.Close()
	relief.dev = dev
	relief.limit, err = limitBuffers(dev)
	close(gate.ready)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { relief.run(ctx) })
	return serveControl(ctx, cfg, tunnelProcess{dev, refused, func() Offloads {
		offloads, err := readOffloads(raw, bind)
		if err != nil {
			return nil
		}
		return offloads
	}})
}

// serveControl serves the control socket of a device until ctx ends or the device is deleted. One that
// was removed is opened again.
func serveControl(ctx context.Context, cfg Config, process tunnelProcess) error {
	path := Socket(cfg.Device)
	listener, err := Listen(ctx, path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	defer func() {
		_ = os.Remove(path) // first, as tools remove one that answers no more
		listener.Close()
	}()
	first := listener
	group.Go(func() { acceptControl(ctx, first, process) })
	cfg.Log.Info("userspace WireGuard runs", "device", cfg.Device)

	watchSocket := time.NewTicker(time.Second)
	defer watchSocket.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-process.dev.Wait():
			return nil
		case <-watchSocket.C:
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				continue
			}
			again, err := Listen(ctx, path)
			if err != nil {
				return err
			}
			listener.Close()
			listener = again
			group.Go(func() { acceptControl(ctx, again, process) })
		}
	}
}

// gatedTUN keeps wireguard-go from taking a buffer before buffers are limited: its reader
// first asks for the batch size, and its bind is opened upon an event.
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
