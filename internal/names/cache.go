package names

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// question is the key of a cached answer of the node's resolvers. Each consumer has cached answers
// of its own, so that timing does not reveal what others ask for, and no consumer evicts another's
// answers.
type question struct {
	peer, name string
	qtype      uint16
	dnssec     bool
}

// cache is an LRU cache of answers.
type cache struct {
	mu sync.Mutex
	// entries are the elements of their consumer's list.
	entries map[question]*list.Element
	peers   map[string]*shelf
	bytes   int
}

// shelf has the answers of one consumer, most recently used first.
type shelf struct {
	order list.List
	bytes int
}

type entry struct {
	question
	msg          *dns.Msg
	size         int
	from, expiry time.Time
}

func newCache() *cache {
	return &cache{entries: make(map[question]*list.Element), peers: make(map[string]*shelf)}
}

// get returns an answer with its remaining TTL, or nil.
func (c *cache) get(q question, now time.Time) *dns.Msg {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[q]
	if !ok {
		return nil
	}
	e := element.Value.(*entry)
	if !now.Before(e.expiry) {
		c.remove(element)
		return nil
	}
	c.peers[q.peer].order.MoveToFront(element)
	m := e.msg.Copy()
	age := uint32(now.Sub(e.from) / time.Second)
	for _, part := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range part {
			h := rr.Header()
			h.Ttl -= min(age, h.Ttl)
		}
	}
	return m
}

// put caches an answer, if it may be cached.
func (c *cache) put(q question, m *dns.Msg, now time.Time) {
	life := lifeOf(m)
	size := m.Len() + len(q.name)
	if life <= 0 || size > maxCached {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.entries[q]; ok {
		c.remove(old)
	}
	if c.peers[q.peer] == nil {
		c.peers[q.peer] = &shelf{}
	}
	s := c.peers[q.peer]
	e := &entry{question: q, msg: m.Copy(), size: size, from: now, expiry: now.Add(life)}
	c.entries[q] = s.order.PushFront(e)
	s.bytes += size
	c.bytes += size
	for s.bytes > cacheBytesPerConsumer {
		c.remove(s.order.Back())
	}
	for c.bytes > cacheBytes {
		c.remove(c.largest().order.Back())
	}
}

// largest returns the shelf of the consumer with the most bytes.
func (c *cache) largest() (most *shelf) {
	for _, s := range c.peers {
		if most == nil || s.bytes > most.bytes {
			most = s
		}
	}
	return most
}

func (c *cache) remove(element *list.Element) {
	e := element.Value.(*entry)
	s := c.peers[e.peer]
	s.order.Remove(element)
	s.bytes -= e.size
	c.bytes -= e.size
	delete(c.entries, e.question)
	if s.order.Len() == 0 {
		delete(c.peers, e.peer)
	}
}

// lifeOf returns how long an answer may be cached; 0 means not at all.
func lifeOf(m *dns.Msg) time.Duration {
	if m.Truncated || (m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError) {
		return 0
	}
	life := cacheLife
	for _, rr := range m.Answer {
		life = min(life, time.Duration(rr.Header().Ttl)*time.Second)
	}
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0 {
		return life
	}
	// RFC 2308: the SOA of a negative answer says how long it may be cached.
	for _, rr := range m.Ns {
		if s, ok := rr.(*dns.SOA); ok {
			return min(life, negativeLife, time.Duration(min(s.Hdr.Ttl, s.Minttl))*time.Second)
		}
	}
	return 0
}
