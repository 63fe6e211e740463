package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/entente-dev/entente/integration/lab"
)

// fault is the command that changes what the internet does to packets.
func (c *command) fault(kind string) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := c.faultRequest(kind)
		if err != nil {
			return err
		}
		l, err := c.open(ctx)
		if err != nil {
			return err
		}
		f, err := l.Fault(ctx, r)
		if err != nil {
			return err
		}
		if len(f.Pairs)+len(f.NAT) == 0 {
			fmt.Fprintln(c.out, "no faults")
		}
		for _, p := range f.Pairs {
			fmt.Fprintln(c.out, p)
		}
		for _, n := range f.NAT {
			fmt.Fprintln(c.out, n+" is behind NAT")
		}
		return nil
	}
}

// faultRequest reads the arguments of the command kind.
func (c *command) faultRequest(kind string) (lab.FaultRequest, error) {
	least, most := 3, 3
	switch kind {
	case "cut":
		least, most = 2, 2
	case "heal":
		least, most = 0, 2
	case "nat":
		least, most = 1, 2
	}
	args, err := c.parse(flags(kind), least, most)
	if err != nil {
		return lab.FaultRequest{}, err
	}
	r := lab.FaultRequest{Kind: kind}
	if kind == "nat" {
		r.A = args[0]
		if len(args) == 2 {
			if args[1] != "off" {
				return r, fmt.Errorf("nat: %q: want no argument or off", args[1])
			}
			r.Kind = "nonat"
		}
		return r, nil
	}
	if len(args) > 0 {
		r.A = args[0]
	}
	if len(args) > 1 {
		r.B = args[1]
	}
	switch kind {
	case "loss":
		r.LossPercent, err = strconv.ParseFloat(strings.TrimSuffix(args[2], "%"), 64)
	case "delay":
		r.Delay, err = time.ParseDuration(args[2])
	}
	return r, err
}

// node is the command that switches a node off or on.
func (c *command) node(action string) func(context.Context) error {
	return func(ctx context.Context) error {
		args, err := c.parse(flags(action), 1, 1)
		if err != nil {
			return err
		}
		l, err := c.open(ctx)
		if err != nil {
			return err
		}
		if action == "stop" {
			return l.StopNode(ctx, args[0])
		}
		return l.StartNode(ctx, args[0])
	}
}

func (c *command) capture(ctx context.Context) error {
	fs := flags("capture")
	span := fs.Duration("for", 0, "how long; until Ctrl-C if 0")
	args, err := c.parse(fs, 3, 3)
	if err != nil {
		return err
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	if *span > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *span)
		defer cancel()
	}
	if err := l.Capture(ctx, args[0], args[1], args[2], os.Stderr); err != nil {
		return err
	}
	fi, err := os.Stat(args[2])
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s: %d bytes\n", filepath.Base(args[2]), fi.Size())
	return nil
}

func (c *command) readdress(ctx context.Context) error {
	args, err := c.parse(flags("readdress"), 2, 2)
	if err != nil {
		return err
	}
	to, err := netip.ParseAddr(args[1])
	if err != nil {
		return err
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	return l.Readdress(ctx, args[0], to)
}

func (c *command) host(ctx context.Context) error {
	fs := flags("host")
	remove := fs.Bool("remove", false, "remove it")
	lan := fs.Int("lan", 1, "the LAN: 1 is the one that the clusters share, 2 the one that nodes can move to")
	if err := fs.Parse(c.args); err != nil {
		return err
	}
	args := fs.Args()
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1:1], args[2:]...)
	}
	if len(args) < 1 || *remove && len(args) > 1 {
		return errors.New("host: want [--lan N] NAME [-- CMD…], or --remove NAME")
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	if *remove {
		return l.RemoveHost(ctx, args[0])
	}
	h, err := l.Host(ctx, args[0], *lan)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		fmt.Fprintln(c.out, h.Name, h.Address, h.Address6)
		return nil
	}
	cmd := h.Exec(ctx, args[1:]...)
	// Become it: signals, terminal and exit code are its own then.
	return syscall.Exec(cmd.Path, cmd.Args, cmd.Env)
}
