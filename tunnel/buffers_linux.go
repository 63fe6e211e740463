package tunnel

import (
	"context"
	"encoding/hex"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/device"
)

// bufferPool is the pool of packet buffers of a device.
type bufferPool struct {
	*device.WaitPool
	most uint32
	// lock and count belong to the WaitPool.
	lock  *sync.Mutex
	count *uint32
}

// boundBuffers gives a device that has not begun to work a pool of at most so
// many packet buffers. wireguard-go knows how to wait when its pool is used up,
// and does so on Android, but on Linux its limit is a constant, "none"; so the
// pool is exchanged behind its back. Should its fields ever have other names or
// types, that is an error here, and not a process without limits.
func boundBuffers(dev *device.Device, most uint32) (*bufferPool, error) {
	changed := errors.New("bound the buffers of wireguard-go: it has changed")
	pools := reflect.ValueOf(dev).Elem().FieldByName("pool")
	if !pools.IsValid() || pools.Kind() != reflect.Struct {
		return nil, changed
	}
	field := pools.FieldByName("messageBuffers")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*device.WaitPool]() {
		return nil, changed
	}
	p := &bufferPool{WaitPool: device.NewWaitPool(most, func() any { return new([device.MaxMessageSize]byte) }), most: most}
	inside := reflect.ValueOf(p.WaitPool).Elem()
	lock, count := inside.FieldByName("lock"), inside.FieldByName("count")
	if !lock.IsValid() || lock.Type() != reflect.TypeFor[sync.Mutex]() || !count.IsValid() || count.Type() != reflect.TypeFor[uint32]() {
		return nil, changed
	}
	p.lock, p.count = (*sync.Mutex)(unsafe.Pointer(lock.UnsafeAddr())), (*uint32)(unsafe.Pointer(count.UnsafeAddr())) //nolint:gosec // see above
	*(**device.WaitPool)(unsafe.Pointer(field.UnsafeAddr())) = p.WaitPool                                             //nolint:gosec // see above
	return p, nil
}

// scarce tells that less than a quarter of the buffers is free.
func (p *bufferPool) scarce() bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	return *p.count > p.most/4*3
}

// reliever throws away what waits for peers without a session when buffers get
// scarce. Packets in motion free their buffers by themselves; those do not, and
// a pod that floods a dead peer could stop everything with them. Nothing is
// lost by it that could have arrived.
type reliever struct {
	dev  *device.Device
	pool *bufferPool
	idle atomic.Pointer[[]device.NoisePublicKey]
}

// flush is called before each read of the TUN device.
func (r *reliever) flush() {
	idle := r.idle.Load()
	if idle == nil || len(*idle) == 0 || !r.pool.scarce() {
		return
	}
	r.empty(*idle)
}

func (r *reliever) empty(idle []device.NoisePublicKey) {
	for _, key := range idle {
		if peer := r.dev.LookupPeer(key); peer != nil {
			peer.FlushStagedPackets()
		}
	}
}

// run keeps the list of peers without a session, and empties their queues also
// when the reader itself waits for a buffer, until ctx ends or the device is
// closed.
func (r *reliever) run(ctx context.Context) {
	// The list comes over the configuration interface, which may itself wait
	// for a buffer; so it is asked for apart.
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
			group.Go(r.dev.Close) // which may itself wait for a buffer to be freed
		case <-r.dev.Wait():
			return
		case <-tick.C:
			r.flush()
		}
	}
}

// idlePeers are those without a session that can be used.
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
