package mongoerr

// Row is one row of the table, for the tests that produce it on a real server.
type Row struct {
	Code        int
	Name, Event string
	Cmd, Doc    Write
	Read        Read
	Tail        Tail
	Untouched   bool
}

// Rows returns the table.
func Rows() []Row {
	all := make([]Row, len(rows))
	for i, r := range rows {
		all[i] = Row{Code: r.code, Name: r.name, Event: r.event, Cmd: r.cmd, Doc: r.doc, Read: r.read, Tail: r.tail, Untouched: r.untouched}
	}
	return all
}
