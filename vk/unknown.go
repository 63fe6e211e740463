package vk

import (
	"cmp"
	"context"

	"github.com/entente-dev/entente/peering"
)

// unknownPods bounds the provider's statuses of pods that the cache does not have. The cache may be
// behind, and a provider sends each status once, so it is kept until the cache has the pod, or the API
// server says that there is none.
type unknownPods struct {
	sizes map[string]int // bytes of the last status, by UID
	bytes int            // of all
}

// admit reports whether a status of size bytes has room in place of the pod's earlier one. A size of 0 keeps
// the earlier one's.
func (u *unknownPods) admit(uid string, size int) bool {
	old, is := u.sizes[uid]
	size = cmp.Or(size, old)
	if !is && len(u.sizes) >= maxUnknownPods || u.bytes-old+size > maxUnknownBytes {
		return false
	}
	if u.sizes == nil {
		u.sizes = map[string]int{}
	}
	u.sizes[uid], u.bytes = size, u.bytes-old+size
	return true
}

func (u *unknownPods) has(uid string) bool {
	_, is := u.sizes[uid]
	return is
}

func (u *unknownPods) forget(uid string) {
	u.bytes -= u.sizes[uid]
	delete(u.sizes, uid)
}

// dropUnknown drops the state of pods that do not exist, and reconciles those that the cache has by now.
func (n *Node) dropUnknown(ctx context.Context) {
	var refs []peering.ObjectRef
	n.mu.Lock()
	for uid := range n.unknown.sizes {
		if len(refs) < maxUnknownReads {
			refs = append(refs, n.state[uid].ref)
		}
	}
	n.mu.Unlock()
	for _, ref := range refs {
		is, err := n.live(ctx, ref)
		switch {
		case err != nil:
			n.log.Warn("cannot read whether a pod exists", "ref", ref.String(), "err", err)
			return
		case is:
			n.podQueue.Add(ref.UID)
			continue
		}
		n.mu.Lock()
		if n.unknown.has(ref.UID) {
			n.unknown.forget(ref.UID)
			delete(n.state, ref.UID)
		}
		n.mu.Unlock()
	}
}
