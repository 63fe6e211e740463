package vk

import (
	"cmp"
	"context"

	"github.com/entente-dev/entente/peering"
)

// unknownPods bounds what is kept of pods of which the provider said something and that the cache does not
// have. The cache may be behind: a provider says each thing once, so it is kept until the pod is known, or
// is known not to be there.
type unknownPods struct {
	sizes map[string]int // bytes of the last status, by UID
	bytes int            // of all
}

// admit says whether there is room for a status of so many bytes in place of an earlier one of the pod. One of none
// leaves that.
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

// dropUnknown drops what is kept of pods that are not there, and reconciles those that are known by now.
func (n *Node) dropUnknown(ctx context.Context) {
	var refs []peering.ObjectRef
	n.mu.Lock()
	for uid := range n.unknown.sizes {
		if len(refs) < maxUnknownLooks {
			refs = append(refs, n.state[uid].ref)
		}
	}
	n.mu.Unlock()
	for _, ref := range refs {
		is, err := n.live(ctx, ref)
		switch {
		case err != nil:
			n.log.Warn("cannot tell whether a pod is there", "ref", ref.String(), "err", err)
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
