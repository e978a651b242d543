module github.com/seed-12ef14e5/capstan/tools

go 1.26.0

tool (
	github.com/polyfloyd/go-errorlint
	github.com/sonatard/noctx/cmd/noctx
	github.com/ykadowak/zerologlint/cmd/zerologlint
	honnef.co/go/tools/cmd/staticcheck
)

require (
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	github.com/gostaticanalysis/analysisutil v0.7.1 // indirect
	github.com/gostaticanalysis/comment v1.5.0 // indirect
	github.com/polyfloyd/go-errorlint v1.8.0 // indirect
	github.com/sonatard/noctx v0.5.1 // indirect
	github.com/ykadowak/zerologlint v0.1.5 // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	golang.org/x/tools/go/packages/packagestest v0.1.1-deprecated // indirect
	honnef.co/go/tools v0.8.2 // indirect
)
