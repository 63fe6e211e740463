package tunnel

import (
	"errors"
	"fmt"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/userspace"
)

// control talks to the WireGuard device. The protocol of the tunnel process has
// no deadlines, so each exchange runs apart and is given up after a while; as
// long as one hangs no other is begun.
type control struct {
	device string
	busy   chan struct{} // has one token while an exchange runs
}

func newControl(device string) *control {
	return &control{device: device, busy: make(chan struct{}, 1)}
}

func (c *control) read() (dev *wgtypes.Device, err error) {
	err = c.exchange(func(client *wgctrl.Client) error {
		d, err := client.Device(c.device)
		dev = d
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read WireGuard device %s: %w", c.device, err)
	}
	return dev, nil
}

func (c *control) configure(cfg wgtypes.Config) error {
	if err := c.exchange(func(client *wgctrl.Client) error { return client.ConfigureDevice(c.device, cfg) }); err != nil {
		return fmt.Errorf("configure WireGuard device %s: %w", c.device, err)
	}
	return nil
}

// report asks the tunnel process for what WireGuard's protocol does not have.
func (c *control) report() (report userspace.Report, err error) {
	err = c.alone(func() error {
		r, err := userspace.AskReport(c.device)
		report = r
		return err
	})
	if err != nil {
		return userspace.Report{}, err
	}
	return report, nil
}

func (c *control) exchange(do func(*wgctrl.Client) error) error {
	return c.alone(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return fmt.Errorf("open WireGuard control: %w", err)
		}
		defer func() { _ = client.Close() }()
		return do(client)
	})
}

// alone runs an exchange while no other runs.
func (c *control) alone(do func() error) error {
	select {
	case c.busy <- struct{}{}:
	default:
		return errors.New("the tunnel process has not answered the last request: restart container wireguard of this pod")
	}
	done := make(chan error, 1)
	go func() {
		err := do()
		<-c.busy
		done <- err
	}()
	return withTimeout(done)
}

// withTimeout waits for an exchange with the device.
func withTimeout(done <-chan error) error {
	t := time.NewTimer(deviceTimeout)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return fmt.Errorf("no answer within %v: restart container wireguard of this pod", deviceTimeout)
	}
}
