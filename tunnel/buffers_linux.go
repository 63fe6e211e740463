package tunnel

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

// scarce says that less than a quarter of the buffers is free.
func (b bufferLimit) scarce() bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	return *b.count > maxPackets/4*3
}

// reliever drops the packets that wait for peers without a session when buffers get
// scarce. All other packets free their buffers by themselves. Without it a pod that
// floods a dead peer would stop the traffic with all peers.
type reliever struct {
	dev   *device.Device
	limit bufferLimit
	idle  atomic.Pointer[[]device.NoisePublicKey]
}

// relieve is called before each read of the TUN device, and now and then.
func (r *reliever) relieve() {
	idle := r.idle.Load()
	if idle == nil || len(*idle) == 0 || !r.limit.scarce() {
		return
	}
	for _, key := range *idle {
		if peer := r.dev.LookupPeer(key); peer != nil {
			peer.FlushStagedPackets()
		}
	}
}

// run lists the peers without a session, and relieves also while the reader itself waits
// for a buffer, until ctx ends or the device is closed.
func (r *reliever) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// In a goroutine of its own: the configuration interface may wait for a buffer.
	group.Go(func() {
		every := time.NewTicker(listIdleEvery)
		defer every.Stop()
		for {
			idle := idlePeers(r.dev, time.Now())
			r.idle.Store(&idle)
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
		}
	})
	tick := time.NewTicker(reliefEvery)
	defer tick.Stop()
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil
			group.Go(r.dev.Close) // which may wait for a buffer, too
		case <-r.dev.Wait():
			return
		case <-tick.C:
			r.relieve()
		}
	}
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
			if err == nil && now.Sub(time.Unix(seconds, 0)) > sessionLife {
				idle = append(idle, key)
			}
		}
	}
	return idle
}
