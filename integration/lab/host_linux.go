package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxHosts bounds the hosts of a lab.
const maxHosts = 64

var hostName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// host is a host that runs.
type host struct {
	HostStatus
	uplink string
	number int
	ended  chan struct{}
}

// hostSpec is the input of a host's first process.
type hostSpec struct {
	Name      string         `json:"name"`
	Addresses []netip.Prefix `json:"addresses"`
	Gateway   netip.Addr     `json:"gateway"`
}

// makeHost makes a host on a LAN, unless it is there.
func (d *daemon) makeHost(_ context.Context, name string, on int) (HostStatus, error) {
	p := d.plan()
	switch {
	case p.Options.LAN != SharedLAN:
		return HostStatus{}, fmt.Errorf("lab %s has no shared LAN on which a host could be", p.Options.Name)
	case on < 1 || on > len(p.Segments):
		return HostStatus{}, fmt.Errorf("LAN %d: want 1 to %d", on, len(p.Segments))
	case !hostName.MatchString(name):
		return HostStatus{}, fmt.Errorf("host name %q: want a lower-case letter and at most 30 more lower-case letters, digits and dashes", name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.hosts[name]; h != nil {
		if h.LAN != on {
			return HostStatus{}, fmt.Errorf("host %s is on LAN %d: remove it first", name, h.LAN)
		}
		return h.HostStatus, nil
	}
	taken := map[int]bool{}
	for _, h := range d.hosts {
		taken[h.number] = true
	}
	number := 1
	for taken[number] {
		number++
	}
	if number > maxHosts {
		return HostStatus{}, fmt.Errorf("there are %d hosts: want no more", maxHosts)
	}
	lan := p.Segments[on-1]
	h := &host{HostStatus: HostStatus{Name: name, LAN: on}, uplink: fmt.Sprintf("h%d", number), number: number, ended: make(chan struct{})}
	h.Address, h.Address6 = lan.address(0, 10+number)
	spec, err := json.Marshal(hostSpec{
		Name: name, Gateway: lan.Gateway,
		Addresses: []netip.Prefix{netip.PrefixFrom(h.Address, lan.Prefix.Bits()), netip.PrefixFrom(h.Address6, lan.Prefix6.Bits())},
	})
	if err != nil {
		return HostStatus{}, err
	}
	out, err := os.OpenFile(filepath.Join(d.dir, "log", "host-"+name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return HostStatus{}, err
	}
	defer func() { _ = out.Close() }()
	h.PID, err = d.spawn(out, lan.Name, h.uplink, func(err error) {
		d.logger.Info("host ended", "host", name, "err", err)
		d.mu.Lock()
		delete(d.hosts, name)
		d.mu.Unlock()
		close(h.ended)
	}, "host-init", string(spec))
	if err != nil {
		return HostStatus{}, err
	}
	d.hosts[name] = h
	return h.HostStatus, nil
}

// removeHost ends a host and all that runs on it, without warning.
func (d *daemon) removeHost(ctx context.Context, name string) error {
	d.mu.Lock()
	h := d.hosts[name]
	d.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill host: %w", err)
	}
	select {
	case <-h.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the host's processes to end: %w", ctx.Err())
	}
	return d.internet.detach(h.uplink)
}

// runHostInit is PID 1 of a host. It has the machine's file system, but for /run,
// where programs have their sockets. It does nothing but bury the dead.
func runHostInit(text string) error {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	var spec hostSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("read the host's description: %w", err)
	}
	uplink := os.NewFile(3, "uplink")
	if _, err := io.Copy(io.Discard, uplink); err != nil {
		return fmt.Errorf("wait for the network interface: %w", err)
	}
	_ = uplink.Close()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, target string }{{"proc", "/proc"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m.kind, m.target, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := spec.network(); err != nil {
		return fmt.Errorf("set up the host's network: %w", err)
	}
	for range died {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	}
	return nil
}

func (s hostSpec) network() error {
	if err := setSysctl("net/ipv6/conf/all/disable_ipv6", "0"); err != nil {
		return err
	}
	if err := linkUp("lo"); err != nil {
		return err
	}
	for _, a := range s.Addresses {
		if err := linkAddress("eth0", a); err != nil {
			return err
		}
	}
	if err := linkUp("eth0"); err != nil {
		return err
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: all, Gw: s.Gateway.AsSlice()})
}
