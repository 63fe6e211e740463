package peering

import (
	"testing"
	"time"
)

func TestCompareSeparatesSmallChangesFromLargeOnes(t *testing.T) {
	offer := func(edit func(*Offer)) Offer {
		o := Offer{Available: true, Duration: time.Hour, Resources: Resources{"cpu": Whole(100), "pods": Whole(10)}, Pools: []OfferedPool{{Name: "gpu", Resources: Resources{"cpu": Whole(100)}}}}
		edit(&o)
		return o
	}
	was := offer(func(*Offer) {})
	for name, tt := range map[string]struct {
		now  Offer
		want Change
	}{
		"nothing":                  {offer(func(*Offer) {}), Unchanged},
		"an amount, by less":       {offer(func(o *Offer) { o.Resources["cpu"] = Whole(96) }), ChangedLittle},
		"an amount, by as much":    {offer(func(o *Offer) { o.Resources["cpu"] = Whole(95) }), Changed},
		"two amounts, by less":     {offer(func(o *Offer) { o.Resources = Resources{"cpu": Whole(104), "pods": Whole(10)} }), ChangedLittle},
		"another resource":         {offer(func(o *Offer) { o.Resources = Resources{"cpu": Whole(100), "gpu": Whole(10)} }), Changed},
		"one resource more":        {offer(func(o *Offer) { o.Resources["gpu"] = Whole(0) }), Changed},
		"a service":                {offer(func(o *Offer) { o.Services = []OfferedService{{Namespace: "a", Name: "b"}} }), Changed},
		"a pool's amount, by less": {offer(func(o *Offer) { o.Pools[0].Resources["cpu"] = Whole(96) }), ChangedLittle},
		"a pool's amount":          {offer(func(o *Offer) { o.Pools[0].Resources = nil }), Changed},
		"a pool's name":            {offer(func(o *Offer) { o.Pools[0].Name = "spot" }), Changed},
		"a pool's label":           {offer(func(o *Offer) { o.Pools[0].NodeLabels = map[string]string{"a": "b"} }), Changed},
		"a pool's price":           {offer(func(o *Offer) { o.Pools[0].Price.Currency = "EUR" }), Changed},
		"a pool more":              {offer(func(o *Offer) { o.Pools = append(o.Pools, OfferedPool{Name: "spot"}) }), Changed},
		"the message":              {offer(func(o *Offer) { o.Message = "soon" }), Changed},
	} {
		for _, got := range []Change{was.Compare(tt.now, 5), tt.now.Compare(was, 5)} {
			if got != tt.want {
				t.Errorf("%s: %d, want %d", name, got, tt.want)
			}
		}
	}
}
