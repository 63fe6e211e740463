package meter_test

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
	"github.com/entente-dev/entente/peering/peeringtest"
)

var begin = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

var usage = peeringtest.Usage

var resources = peeringtest.Resources

var decimal = peeringtest.Decimal

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

// observation is what is in use from a time on.
type observation struct {
	after time.Duration
	using peering.Resources
}

func TestMeterCountsUseByPeriod(t *testing.T) {
	r := func(kv ...string) peering.Resources { return resources(t, kv...) }
	for _, tt := range []struct {
		name string
		list []observation
		// ended is the periods of an hour that end, used what is left.
		ended []peering.Usage
		used  peering.Usage
	}{
		{
			"nothing is in use before the first observation",
			[]observation{{time.Minute, r("cpu", "1")}},
			nil, nil,
		},
		{
			"what is in use counts until the next",
			[]observation{{0, r("cpu", "1500m")}, {time.Minute, r("cpu", "2")}, {2 * time.Minute, nil}, {3 * time.Minute, nil}},
			nil, usage(t, "cpu", "210"),
		},
		{
			"to the millisecond",
			[]observation{{0, r("cpu", "1m")}, {time.Millisecond + 999*time.Microsecond, nil}},
			nil, usage(t, "cpu", "0.000001"),
		},
		{
			"two minutes are not a gap",
			[]observation{{0, r("cpu", "1")}, {2 * time.Minute, r("cpu", "5")}},
			nil, usage(t, "cpu", "120"),
		},
		{
			"in a gap the lesser counts",
			[]observation{{0, r("cpu", "4", "memory", "1Gi", "pods", "2")}, {2*time.Minute + time.Millisecond, r("cpu", "1", "memory", "2Gi", "nvidia.com/gpu", "1")}},
			nil, usage(t, "cpu", "120.001", "memory", "128850092621.824"),
		},
		{
			"time that goes back adds nothing",
			[]observation{{0, r("cpu", "1")}, {time.Minute, r("cpu", "1")}, {0, r("cpu", "8")}, {time.Minute, r("cpu", "1")}, {2 * time.Minute, nil}},
			nil, usage(t, "cpu", "120"),
		},
		{
			"a time before the begin adds nothing",
			[]observation{{-time.Hour, r("cpu", "8")}, {-time.Minute, r("cpu", "1")}, {time.Minute, nil}},
			nil, usage(t, "cpu", "60"),
		},
		{
			"a period ends in the middle",
			[]observation{{59 * time.Minute, r("cpu", "1")}, {61 * time.Minute, nil}},
			[]peering.Usage{usage(t, "cpu", "60")},
			usage(t, "cpu", "60"),
		},
		{
			"a period ends at an observation",
			[]observation{{59 * time.Minute, r("cpu", "1")}, {60 * time.Minute, r("cpu", "1")}},
			[]peering.Usage{usage(t, "cpu", "60")},
			nil,
		},
		{
			"periods without an observation",
			[]observation{{0, r("cpu", "2")}, {150 * time.Minute, r("cpu", "1")}},
			[]peering.Usage{usage(t, "cpu", "3600"), usage(t, "cpu", "3600")},
			usage(t, "cpu", "1800"),
		},
		{
			"periods without use end too",
			[]observation{{150 * time.Minute, nil}},
			[]peering.Usage{{}, {}},
			nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := meter.New(begin, time.Hour)
			var ended []meter.Period
			for _, o := range tt.list {
				var list []meter.Period
				m, list = m.Observe(begin.Add(o.after), o.using)
				ended = append(ended, list...)
			}
			if len(ended) != len(tt.ended) {
				t.Fatalf("%d periods: %+v", len(ended), ended)
			}
			for i, p := range ended {
				from := begin.Add(time.Duration(i) * time.Hour)
				if p.Sequence != uint64(i+1) || !p.From.Equal(from) || !p.To.Equal(from.Add(time.Hour)) || !p.Used.Equal(tt.ended[i]) {
					t.Errorf("period %d: %+v, want %v", i+1, p, tt.ended[i].Strings())
				}
			}
			if !m.Used.Equal(tt.used) {
				t.Errorf("used %v, want %v", m.Used.Strings(), tt.used.Strings())
			}
		})
	}
}

func TestMeterEnds(t *testing.T) {
	using := resources(t, "cpu", "1")
	m, _ := meter.New(begin, time.Hour).Observe(begin, using)
	for at := range 90 { // minutes
		m, _ = m.Observe(begin.Add(time.Duration(at)*time.Minute), using)
	}
	at := begin.Add(90*time.Minute + 700*time.Millisecond)
	m, ended := m.End(at)
	at = at.Truncate(time.Second)
	if len(ended) != 1 || ended[0].Sequence != 2 || !ended[0].From.Equal(begin.Add(time.Hour)) || !ended[0].To.Equal(at) || !ended[0].Used.Equal(usage(t, "cpu", "1800")) {
		t.Errorf("%+v", ended)
	}
	if again, ended := m.End(at); len(ended) != 0 || again.Sequence != 2 {
		t.Errorf("ended again: %+v", ended)
	}
	// An end that is observed late is not before what was counted.
	m, _ = meter.New(begin, time.Hour).Observe(begin, using)
	m, _ = m.Observe(begin.Add(90*time.Second+time.Millisecond), using)
	m, ended = m.End(begin.Add(time.Minute))
	if len(ended) != 1 || !ended[0].To.Equal(begin.Add(91*time.Second)) || !ended[0].Used.Equal(usage(t, "cpu", "91")) {
		t.Errorf("%+v", ended)
	}
	// Before it began there is nothing to end.
	if _, ended := meter.New(begin, time.Hour).End(begin.Add(-time.Hour)); len(ended) != 0 {
		t.Errorf("%+v", ended)
	}
	_ = m
}

// A meter that was away for long ends its periods in pieces, and loses nothing.
func TestMeterEndsPeriodsInPieces(t *testing.T) {
	using := resources(t, "cpu", "1")
	m, _ := meter.New(begin, time.Minute).Observe(begin, using)
	now := begin.Add(100*time.Minute + time.Second)
	var all []meter.Period
	for range 10 {
		var list []meter.Period
		m, list = m.Observe(now, using)
		all = append(all, list...)
		if len(list) > peering.MaxPeriods {
			t.Fatalf("%d at once", len(list))
		}
		if len(list) < peering.MaxPeriods {
			break
		}
	}
	if len(all) != 100 || !m.Until.Equal(now) {
		t.Errorf("%d periods, until %s", len(all), m.Until)
	}
	for i, p := range all {
		if p.Sequence != uint64(i+1) || !p.Used.Equal(usage(t, "cpu", "60")) {
			t.Fatalf("%+v", p)
		}
	}
	// The same at the end of a contract.
	m, _ = meter.New(begin, time.Minute).Observe(begin, using)
	all = nil
	for range 10 {
		var list []meter.Period
		m, list = m.End(now)
		all = append(all, list...)
		if len(list) == 0 {
			break
		}
	}
	if n := len(all); n != 101 || all[100].To.Sub(all[100].From) != time.Second || !m.Since.Equal(now) {
		t.Errorf("%d periods, then %+v", n, m)
	}
}

// A revision may change the period: the current one ends when the new length says,
// or at once if that is past.
func TestMeterWithAnotherPeriod(t *testing.T) {
	using := resources(t, "cpu", "1")
	for _, tt := range []struct {
		period time.Duration
		want   time.Duration
	}{{2 * time.Hour, 2 * time.Hour}, {45 * time.Minute, 45 * time.Minute}, {10 * time.Minute, 40*time.Minute + time.Second}} {
		m := meter.Meter{Since: begin, Period: time.Hour, Until: begin.Add(40*time.Minute + time.Millisecond), Using: using, Used: usage(t, "cpu", "2400.001")}
		m.Period = tt.period
		var ended []meter.Period
		for at := 41 * time.Minute; at <= 121*time.Minute && len(ended) == 0; at += time.Minute {
			m, ended = m.Observe(begin.Add(at), using)
		}
		if len(ended) == 0 || ended[0].To.Sub(begin) != tt.want || !ended[0].Used.Equal(usage(t, "cpu", fmt.Sprint(int(tt.want/time.Second)))) {
			t.Errorf("%s: %+v", tt.period, ended)
		}
	}
}

// drawUse draws what is in use, in steps without a gap.
func drawUse(rt *rapid.T, steps int) []observation {
	var list []observation
	at := time.Duration(0)
	for range steps {
		r := peering.Resources{}
		for _, name := range []string{"cpu", "memory", "pods"} {
			if rapid.Bool().Draw(rt, "uses "+name) {
				r[name] = peering.Whole(rapid.Int64Range(0, 1<<36).Draw(rt, name)).Percent(rapid.IntRange(1, 100).Draw(rt, "percent"))
			}
		}
		list = append(list, observation{at, r})
		at += time.Duration(rapid.Int64Range(0, int64(peering.MaxSample/time.Millisecond)).Draw(rt, "for ms")) * time.Millisecond
	}
	return append(list, observation{at, nil})
}

// run observes a list, and returns all periods with the one that still runs.
func run(m meter.Meter, list []observation) (meter.Meter, []meter.Period) {
	var all []meter.Period
	for _, o := range list {
		for {
			var ended []meter.Period
			m, ended = m.Observe(begin.Add(o.after), o.using)
			all = append(all, ended...)
			if len(ended) < peering.MaxPeriods {
				break
			}
		}
	}
	return m, append(all, meter.Period{Sequence: m.Sequence + 1, From: m.Since, Used: m.Used})
}

func equalPeriods(a, b []meter.Period) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d periods and %d", len(a), len(b))
	}
	for i := range a {
		if a[i].Sequence != b[i].Sequence || !a[i].From.Equal(b[i].From) || !a[i].To.Equal(b[i].To) || !a[i].Used.Equal(b[i].Used) {
			return fmt.Errorf("%+v and %+v", a[i], b[i])
		}
	}
	return nil
}

// The count does not depend on when and how often it is observed: it is the sum of amounts times
// time.
func TestMeterDoesNotDependOnWhenItIsRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := drawUse(rt, rapid.IntRange(1, 20).Draw(rt, "steps"))
		var split []observation
		for i, o := range list {
			split = append(split, o)
			if i+1 == len(list) {
				break
			}
			for range rapid.IntRange(0, 3).Draw(rt, "observations") {
				at := rapid.Int64Range(int64(split[len(split)-1].after), int64(list[i+1].after)).Draw(rt, "at")
				split = append(split, observation{time.Duration(at), o.using})
			}
		}
		period := time.Duration(rapid.IntRange(1, 10).Draw(rt, "period")) * time.Minute
		_, once := run(meter.New(begin, period), list)
		_, often := run(meter.New(begin, period), split)
		if err := equalPeriods(once, often); err != nil {
			rt.Fatal(err)
		}
		total, want := peering.Usage{}, map[string]*big.Int{}
		for _, p := range once {
			total = total.Add(p.Used)
		}
		for i, o := range list[:len(list)-1] {
			for name, q := range o.using {
				if want[name] == nil {
					want[name] = new(big.Int)
				}
				milli, _ := new(big.Int).SetString(strings.TrimSuffix(thousandths(q), "m"), 10)
				ms := list[i+1].after.Milliseconds() - o.after.Milliseconds()
				want[name].Add(want[name], milli.Mul(milli, big.NewInt(ms)))
			}
		}
		for name, n := range want {
			got, _ := new(big.Rat).SetString(total[name].String())
			if got.Cmp(new(big.Rat).SetFrac(n, big.NewInt(1e6))) != 0 {
				rt.Fatalf("%s: %s, want %s millionths", name, total[name], n)
			}
		}
	})
}

// thousandths writes an amount in thousandths.
func thousandths(q peering.Quantity) string {
	if !q.IsWhole() {
		return q.String()
	}
	return new(big.Int).Mul(big.NewInt(q.Units()), big.NewInt(1000)).String()
}

// A process that comes back with an older copy of its meter, at any time and as
// often as it likes, never counts more than was used, and never anything twice.
func TestRestoredMeterNeverCountsTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := drawUse(rt, rapid.IntRange(1, 30).Draw(rt, "steps"))
		period := time.Duration(rapid.IntRange(1, 10).Draw(rt, "period")) * time.Minute
		m := meter.New(begin, period)
		kept := m // what is stored, and with it the periods that were returned
		returned := map[uint64]meter.Period{}
		// observe observes at a time, and stores the result, or dies before.
		observe := func(at time.Duration, using peering.Resources) {
			for {
				var ended []meter.Period
				m, ended = m.Observe(begin.Add(at), using)
				if rapid.IntRange(0, 2).Draw(rt, "dies") == 0 {
					m = kept
					return
				}
				for _, p := range ended {
					if want := uint64(len(returned) + 1); p.Sequence != want {
						rt.Fatalf("period %d was returned, want %d", p.Sequence, want)
					}
					returned[p.Sequence] = p
				}
				m = restored(rt, m)
				kept = m
				if len(ended) < peering.MaxPeriods {
					return
				}
			}
		}
		for _, o := range list {
			switch rapid.IntRange(0, 3).Draw(rt, "fault") {
			case 0: // it was away
				continue
			case 1: // the clock went back for a moment
				observe(o.after-time.Duration(rapid.IntRange(0, 600).Draw(rt, "back"))*time.Second, o.using)
			}
			observe(o.after, o.using)
		}
		sum := m.Used
		for _, p := range returned {
			sum = sum.Add(p.Used)
		}
		// While it was away what was in use before counts, if as much was in use after,
		// so this is the most that there can be.
		for name, v := range sum {
			got, _ := new(big.Rat).SetString(v.String())
			if most := new(big.Rat).SetFrac(bound(list, name), big.NewInt(1e6)); got.Cmp(most) > 0 {
				rt.Fatalf("%s: counted %s, %s at most", name, v, most.FloatString(6))
			}
		}
	})
}

// bound is the most that any observer may count: the highest amount, all the
// time.
func bound(list []observation, name string) *big.Int {
	most := new(big.Int)
	for _, o := range list {
		n, _ := new(big.Int).SetString(strings.TrimSuffix(thousandths(o.using[name]), "m"), 10)
		if n.Cmp(most) > 0 {
			most = n
		}
	}
	return most.Mul(most, big.NewInt(list[len(list)-1].after.Milliseconds()))
}

// restored is a meter after its fields went through text.
func restored(rt *rapid.T, m meter.Meter) meter.Meter {
	used, err := peering.ParseUsage(m.Used.Strings())
	if err != nil {
		rt.Fatal(err)
	}
	using, err := peering.ParseResources(m.Using.Strings())
	if err != nil {
		rt.Fatal(err)
	}
	since, err1 := time.Parse(time.RFC3339Nano, m.Since.Format(time.RFC3339Nano))
	until, err2 := time.Parse(time.RFC3339Nano, m.Until.Format(time.RFC3339Nano))
	if err := errors.Join(err1, err2); err != nil {
		rt.Fatal(err)
	}
	return meter.Meter{Since: since, Period: m.Period, Sequence: m.Sequence, Until: until, Using: using, Used: used}
}

// With use that does not change, restarts and gaps change nothing either: all of
// it counts, once.
func TestSteadyUseIsCountedOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		using := peering.Resources{"cpu": peering.Whole(3), "memory": peering.Whole(1 << 30)}
		m, _ := meter.New(begin, time.Minute).Observe(begin, using)
		kept, at, total := m, time.Duration(0), peering.Usage{}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			at += time.Duration(rapid.IntRange(0, 3_000_000).Draw(rt, "ms")) * time.Millisecond
			m = kept
			for {
				var ended []meter.Period
				m, ended = m.Observe(begin.Add(at), using)
				if rapid.IntRange(0, 3).Draw(rt, "dies") == 0 {
					m = restored(rt, kept)
					continue
				}
				for _, p := range ended {
					total = total.Add(p.Used)
				}
				kept = m
				if len(ended) < peering.MaxPeriods {
					break
				}
			}
		}
		total = total.Add(m.Used)
		ms := at.Milliseconds()
		if got, want := total["cpu"].String(), trim(new(big.Rat).SetFrac64(3*ms, 1000).FloatString(6)); got != want && ms != 0 {
			rt.Fatalf("%s core-seconds in %s, want %s", got, at, want)
		}
	})
}

// The amounts of statements sum up to what the whole costs, but for rounding: half of the last
// place each.
func TestStatementsSumUpToTheCost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := drawUse(rt, rapid.IntRange(1, 30).Draw(rt, "steps"))
		price := peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{
			"cpu": decimal(t, "0.000000007"), "memory": decimal(t, "0.123456789"),
		}}
		m := meter.New(begin, time.Minute)
		m, periods := run(m, list)
		periods = periods[:len(periods)-1]
		_, last := m.End(begin.Add(list[len(list)-1].after + time.Second))
		periods = append(periods, last...)
		sum, used := new(big.Rat), peering.Usage{}
		var previous peering.Hash
		for i, p := range periods {
			amount, err := price.Cost(p.Used)
			if err != nil {
				rt.Fatal(err)
			}
			s := peering.Statement{
				ContractID: "c", Revision: 1, Consumer: peering.ClusterID(strings.Repeat("a", 32)), Provider: peering.ClusterID(strings.Repeat("b", 32)),
				Sequence: p.Sequence, Previous: previous, From: p.From, To: p.To, Used: p.Used, Price: price, Amount: amount,
			}
			e, err := peering.NewStatementEnvelope(s)
			if err != nil {
				rt.Fatal(err)
			}
			previous = e.Hash()
			if i > 0 && !periods[i-1].To.Equal(p.From) {
				rt.Fatalf("a gap between %s and %s", periods[i-1].To, p.From)
			}
			n, _ := new(big.Rat).SetString(amount.Amount.String())
			sum, used = sum.Add(sum, n), used.Add(p.Used)
		}
		whole, err := price.Cost(used)
		if err != nil {
			rt.Fatal(err)
		}
		want, _ := new(big.Rat).SetString(whole.Amount.String())
		off := want.Sub(want, sum)
		if off.Abs(off).Cmp(new(big.Rat).SetFrac64(int64(len(periods)+1), 2e9)) > 0 {
			rt.Fatalf("statements are off by %s in %d periods", off.FloatString(12), len(periods))
		}
	})
}
