package userspace

import (
	"context"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/device"
)

// bufferLimit bounds the packet buffers of a device. wireguard-go can wait for a free
// buffer, but only its builds for Android and iOS do: elsewhere the limit is a constant,
// "none". So it is set in the private fields of the pool, see docs/design/0019.
type bufferLimit struct {
	lock  *sync.Mutex // guards count
	count *uint32     // buffers in use
}

// limitBuffers limits the buffers of a device that has not taken one yet to maxPackets. It
// returns an error if this wireguard-go has other fields.
func limitBuffers(dev *device.Device) (b bufferLimit, err error) {
	pool := reflect.ValueOf(dev).Elem()
	for _, name := range []string{"pool", "messageBuffers"} {
		if pool = reflect.Indirect(pool.FieldByName(name)); pool.Kind() != reflect.Struct {
			return b, fmt.Errorf("limit the buffers of wireguard-go: it has no %s", name)
		}
	}
	field := func(name string, kind reflect.Type) unsafe.Pointer {
		f := pool.FieldByName(name)
		if !f.IsValid() || f.Type() != kind {
			err = fmt.Errorf("limit the buffers of wireguard-go: its pool has no %s of type %s", name, kind)
			return nil
		}
		return f.Addr().UnsafePointer()
	}
	b.lock = (*sync.Mutex)(field("lock", reflect.TypeFor[sync.Mutex]()))
	b.count = (*uint32)(field("count", reflect.TypeFor[uint32]()))
	if most := (*uint32)(field("max", reflect.TypeFor[uint32]())); err == nil {
		*most = maxPackets
	}
	return b, err
}

// used returns how many buffers are in use. A device at rest uses some 400: those with
// which its readers wait.
func (b bufferLimit) used() uint32 {
	b.lock.Lock()
	defer b.lock.Unlock()
	return *b.count
}

// reliever drops the packets that wait for peers without a session when buffers get
// scarce. All other packets free their buffers by themselves. Without it a pod that
// floods a dead peer would stop the traffic with all peers. It sleeps while less than half
// of the buffers are in use.
type reliever struct {
	dev   *device.Device
	limit bufferLimit
	idle  atomic.Pointer[idleList]
	// wake starts the watching of buffers, watched says that they are being watched.
	wake    chan struct{}
	watched atomic.Bool
}

// relieve is called before each read of the TUN device, and while buffers are watched.
func (r *reliever) relieve() {
	used := r.limit.used()
	if used > maxPackets/2 && r.watched.CompareAndSwap(false, true) {
		r.wake <- struct{}{} // has room for one, and watched is true until it was taken
	}
	idle := r.idle.Load()
	if idle == nil || used <= maxPackets/4*3 || time.Since(idle.at) > 2*listIdleEvery {
		return
	}
	for _, key := range idle.peers {
		if peer := r.dev.LookupPeer(key); peer != nil {
			peer.FlushStagedPackets()
		}
	}
}

// run watches the buffers while many are in use: it lists the peers without a session, and
// relieves also while the reader itself waits for a buffer. It returns when the device is
// closed, which the end of ctx does.
func (r *reliever) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	refresh, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	group.Go(func() { r.list(refresh, end) })
	again := time.NewTimer(0)
	defer again.Stop()
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil
			group.Go(r.dev.Close) // which may wait for a buffer
		case <-r.dev.Wait():
			return
		case <-r.wake:
			select {
			case refresh <- struct{}{}:
			default: // it was asked a moment ago
			}
			again.Reset(reliefEvery)
		case <-again.C:
			r.watched.Store(false)
			r.relieve()
		}
	}
}

// list lists the peers without a session when it receives from refresh, but not more often than each
// listIdleEvery. It runs in a goroutine of its own: the configuration interface may wait for a buffer.
func (r *reliever) list(refresh, end <-chan struct{}) {
	for {
		select {
		case <-end:
			return
		case <-refresh:
		}
		now := time.Now()
		r.idle.Store(&idleList{now, idlePeers(r.dev, now)})
		select {
		case <-end:
			return
		case <-time.After(listIdleEvery):
		}
	}
}

// idleList is the peers that had no session at a time.
type idleList struct {
	at    time.Time
	peers []device.NoisePublicKey
}

// idlePeers returns the peers without a session that can be used.
func idlePeers(dev *device.Device, now time.Time) []device.NoisePublicKey {
	text, err := dev.IpcGet()
	if err != nil {
		return nil
	}
	var idle []device.NoisePublicKey
	var key device.NoisePublicKey
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "public_key":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != len(key) {
				return idle
			}
			key = device.NoisePublicKey(b)
		case "last_handshake_time_sec":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err == nil && now.Sub(time.Unix(seconds, 0)) > SessionLife {
				idle = append(idle, key)
			}
		}
	}
	return idle
}
