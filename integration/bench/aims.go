package main

import "math"

const (
	// mostNonLinear is how much longer it may take to delete a pod among many than among a tenth of them or more.
	mostNonLinear = 1.5
	// mostTunnelWrites is how often a second a Tunnel may be written while pods come and go.
	mostTunnelWrites = 4
	// flatMemory is how much larger the live heap may be after all cycles than after the first tenth, and
	// flatGoroutines the number of goroutines.
	flatMemory     = 1.1
	flatGoroutines = 1.05
	// fewPods take as long as their grace and what one waits for, not as their number.
	fewPods = 100
)

// aimsOfPods prints the aims for what is measured over several numbers of pods, and over cycles.
func (b *bench) aimsOfPods(r podsResult) {
	for _, c := range r.Courses {
		if c.Network {
			b.aim(c.TunnelWrites <= mostTunnelWrites, "a Tunnel is written a few times a second, not for each pod: %.1f times with %d pods (bare: %v)", c.TunnelWrites, c.Pods, c.Bare)
		}
	}
	last := map[[2]bool]course{}
	for _, c := range r.Courses {
		kind := [2]bool{c.Bare, c.Network}
		if before, ok := last[kind]; ok && before.Pods >= fewPods {
			factor := c.Gone / float64(c.Pods) / (before.Gone / float64(before.Pods))
			b.aim(factor <= mostNonLinear, "deletes are linear in their number (bare: %v)%s: a pod of %d takes %.2f times as long as one of %d, at most %.1f times",
				c.Bare, c.suffix(), c.Pods, factor, before.Pods, mostNonLinear)
		}
		last[kind] = c
	}
	if len(r.Cycles) < 2 {
		return
	}
	first, end := r.Cycles[0], r.Cycles[len(r.Cycles)-1]
	for _, side := range []struct {
		name          string
		before, after size
	}{{consumer, first.Home, end.Home}, {provider, first.Provider, end.Provider}} {
		heap, goroutines := growth(side.before.Heap, side.after.Heap), growth(side.before.Goroutines, side.after.Goroutines)
		b.aim(heap <= flatMemory, "memory of %s is flat: %.1f MiB of heap after %d pods came and went, %.1f MiB after %d, at most %.0f %% more",
			side.name, side.before.Heap/mib, first.Pods, side.after.Heap/mib, end.Pods, 100*(flatMemory-1))
		b.aim(goroutines <= flatGoroutines, "goroutines of %s are flat: %.0f after %d pods came and went, %.0f after %d, at most %.0f %% more",
			side.name, side.before.Goroutines, first.Pods, side.after.Goroutines, end.Pods, 100*(flatGoroutines-1))
	}
}

// growth is by which factor something grew.
func growth(before, after float64) float64 {
	if before == 0 {
		return math.Inf(1)
	}
	return after / before
}
