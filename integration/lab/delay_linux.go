package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// What a delay line holds at most; packets beyond that are lost, as on a line
// that is full.
const delayedPacketsMost = 1 << 16

// From linux/netfilter/nfnetlink_queue.h.
const (
	nfqnlMsgPacket      = unix.NFNL_SUBSYS_QUEUE << 8
	nfqnlMsgVerdict     = unix.NFNL_SUBSYS_QUEUE<<8 | 1
	nfqnlMsgConfig      = unix.NFNL_SUBSYS_QUEUE<<8 | 2
	nfqaPacketHeader    = 1
	nfqaVerdictHeader   = 2
	nfqaCfgCommand      = 1
	nfqaCfgParams       = 2
	nfqaCfgQueueMaxLen  = 3
	nfqaCfgMask         = 4
	nfqaCfgFlags        = 5
	nfqnlCfgCmdBind     = 1
	nfqnlCopyMeta       = 1
	nfqaCfgFlagGSO      = 1 << 2
	nfAccept            = 1
	queueReceiveBuffer  = 8 << 20
	nfgenHeaderLen      = 4
	packetHeaderMinimum = 4
)

// delayLine holds the packets between two clusters for a while: it keeps the
// kernel's verdict on each, not the packets themselves.
type delayLine struct {
	conn  *netlink.Conn
	delay atomic.Int64
	due   chan delayed
}

type delayed struct {
	id uint32
	at time.Time
}

// openDelayLine binds a netfilter queue of this network namespace. Packets are
// delayed from then on, until the context ends.
func openDelayLine(ctx context.Context, queue uint16, delay time.Duration, wg *sync.WaitGroup) (*delayLine, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	d := &delayLine{conn: conn, due: make(chan delayed, delayedPacketsMost)}
	d.delay.Store(int64(delay))
	if err := d.bind(queue); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("bind netfilter queue %d: %w", queue, err)
	}
	wg.Go(d.receive)
	wg.Go(func() { d.release(queue) })
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return d, nil
}

func (d *delayLine) bind(queue uint16) error {
	// A packet of many segments passes as one; the buffer is for bursts.
	_ = d.conn.SetReadBuffer(queueReceiveBuffer)
	_ = d.conn.SetOption(netlink.NoENOBUFS, true)
	params := make([]byte, 5)
	params[4] = nfqnlCopyMeta
	u32 := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	for _, attrs := range [][]netlink.Attribute{
		{{Type: nfqaCfgCommand, Data: []byte{nfqnlCfgCmdBind, 0, 0, 0}}},
		{
			{Type: nfqaCfgParams, Data: params},
			{Type: nfqaCfgQueueMaxLen, Data: u32(delayedPacketsMost)},
			{Type: nfqaCfgFlags, Data: u32(nfqaCfgFlagGSO)},
			{Type: nfqaCfgMask, Data: u32(nfqaCfgFlagGSO)},
		},
	} {
		b, err := netlink.MarshalAttributes(attrs)
		if err != nil {
			return err
		}
		m := netlink.Message{
			Header: netlink.Header{Type: nfqnlMsgConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(nfgenHeader(queue), b...),
		}
		if _, err := d.conn.Execute(m); err != nil {
			return err
		}
	}
	return nil
}

func nfgenHeader(queue uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, queue)
}

// receive notes each packet's number and when it is due.
func (d *delayLine) receive() {
	defer close(d.due)
	for {
		ms, err := d.conn.Receive()
		if err != nil {
			return
		}
		at := time.Now().Add(time.Duration(d.delay.Load()))
		for _, m := range ms {
			if id, ok := packetID(m); ok {
				select {
				case d.due <- delayed{id: id, at: at}:
				default: // the kernel's queue is as long as ours: not reached
				}
			}
		}
	}
}

// packetID reads the kernel's number of a queued packet.
func packetID(m netlink.Message) (uint32, bool) {
	if m.Header.Type != nfqnlMsgPacket || len(m.Data) < nfgenHeaderLen {
		return 0, false
	}
	attrs, err := netlink.UnmarshalAttributes(m.Data[nfgenHeaderLen:])
	if err != nil {
		return 0, false
	}
	for _, a := range attrs {
		if a.Type == nfqaPacketHeader && len(a.Data) >= packetHeaderMinimum {
			return binary.BigEndian.Uint32(a.Data), true
		}
	}
	return 0, false
}

// release lets each packet go when it is due, in the order of arrival.
func (d *delayLine) release(queue uint16) {
	verdict := make([]byte, 8)
	binary.BigEndian.PutUint32(verdict, nfAccept)
	for p := range d.due {
		time.Sleep(time.Until(p.at))
		binary.BigEndian.PutUint32(verdict[4:], p.id)
		b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: nfqaVerdictHeader, Data: verdict}})
		if err != nil {
			continue
		}
		// An error means that the packet or the queue is gone: nothing to do.
		_, _ = d.conn.Send(netlink.Message{
			Header: netlink.Header{Type: nfqnlMsgVerdict, Flags: netlink.Request},
			Data:   append(nfgenHeader(queue), b...),
		})
	}
}
