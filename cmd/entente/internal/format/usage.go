package format

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// UsageCSV writes one line per period. There are columns for the resources of all lines.
func UsageCSV(to io.Writer, usage []*ententev1.Usage) error {
	resources := map[string]string{}
	for _, u := range usage {
		maps.Copy(resources, u.GetStated())
		maps.Copy(resources, u.GetCounted())
	}
	names := ResourceNames(resources)
	header := []string{"contract", "peer", "role", "sequence", "start", "end", "state", "currency", "amount", "counted_amount", "difference_percent"}
	for _, name := range names {
		header = append(header, "stated_hours:"+name, "counted_hours:"+name)
	}
	w := csv.NewWriter(to)
	_ = w.Write(header) // Error returns it
	for _, u := range usage {
		line := []string{
			Short(u.GetContract()), Short(u.GetPeer()), u.GetRole(), fmt.Sprint(u.GetSequence()),
			Moment(u.GetStartTime()), Moment(u.GetEndTime()), UsageState(u),
			cmp.Or(u.GetAmount().GetCurrency(), u.GetCountedAmount().GetCurrency()), u.GetAmount().GetAmount(), u.GetCountedAmount().GetAmount(), u.GetDifferencePercent(),
		}
		for _, name := range names {
			line = append(line, u.GetStated()[name], u.GetCounted()[name])
		}
		_ = w.Write(line) // Error returns it
	}
	w.Flush()
	return w.Error()
}
