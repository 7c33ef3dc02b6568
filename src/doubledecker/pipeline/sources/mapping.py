"""From a source's rows to the columns of events: a DataFrame in, a DataFrame out.

Besides the event's columns there are three notes for the sink: `_why` a row cannot be an event, the `_row` itself in
that case, and the `_file` it came from. A row whose expressions fail is noted, and the others go on: each expression is
tried inside a struct, which is never null unless what it holds could not be computed.
"""

from collections.abc import Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns
from pyspark.sql.classic.column import Column as ClassicColumn

from doubledecker.errors import BadRequest
from doubledecker.pipeline.sources.config import SourceConfig
from doubledecker.pipeline.spark_format import writer

CORRUPT = "_corrupt"
# What `sql` selects from.
_VIEW = "rows"
_TRIED = "_tried_"
# Neither is text in an event.
_UNTEXTUAL = frozenset({"timestamp", "data"})


def to_events(frame: DataFrame, source: SourceConfig, *, file: Column | None = None) -> DataFrame:
    """What the sink takes; raises BadRequest or Spark's AnalysisException when the mapping does not fit the rows."""
    if source.fields:
        chosen = {name: columns.expr(text).alias(name) for name, text in source.fields.items()}
        return _noted(frame, chosen, source, file=file)
    named = frame if file is None else frame.select("*", file.alias("_file"))
    if not source.is_parsed:
        return _selected(named, source)
    # `where` in the SQL must not drop what cannot be read. All columns are looked at on both sides: of a row of which
    # Spark reads only some columns, it does not see that others are wrong.
    whole = columns.to_json(columns.struct("*")).isNotNull()
    events = _selected(named.where(columns.col(CORRUPT).isNull() & whole).drop(CORRUPT), source)
    unreadable = _noted(named.where(columns.col(CORRUPT).isNotNull() & whole), {}, source)
    return events.unionByName(unreadable, allowMissingColumns=True)


def check(spark: SparkSession, source: SourceConfig) -> None:
    """Raise BadRequest unless schema and mapping can be used; without a schema, expressions are only parsed."""
    try:
        if not source.schema:
            parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - nothing public only parses
            for text in source.fields.values():
                parser.parseExpression(text)
            return
        writer.check_columns(to_events(spark.createDataFrame([], read_schema(source)), source).schema)
    except (AnalysisException, ParseException) as error:
        raise BadRequest(str(error).strip().split("\n")[0]) from error


def read_schema(source: SourceConfig) -> str:
    """The columns to read: those of the schema, and one for the text of a row that does not fit it."""
    return f"{source.schema}, {CORRUPT} string" if source.is_parsed else source.schema


def _selected(frame: DataFrame, source: SourceConfig) -> DataFrame:
    frame.createOrReplaceTempView(_VIEW)
    rows, chosen = _taken_apart(frame.sparkSession.sql(source.sql))
    return _noted(rows, chosen, source)


def _noted(
    rows: DataFrame, chosen: Mapping[str, Column], source: SourceConfig, *, file: Column | None = None
) -> DataFrame:
    """The chosen columns, each tried, and the notes."""
    tried = {name: _tried(rows.sparkSession, each) for name, each in chosen.items()}
    if file is None:
        file = columns.col("_file") if "_file" in rows.columns else columns.lit(None).cast("string")
    corrupt = columns.col(CORRUPT) if CORRUPT in rows.columns else columns.lit(None).cast("string")
    inner = [each.alias(f"{_TRIED}{name}") for name, each in tried.items()]
    notes = [file.alias("_file"), corrupt.alias(CORRUPT), columns.struct("*").alias("_all")]
    # What a database says of a column, such as how long its texts may be, is no business of the event's.
    outer = [_value(name).alias(name, metadata={}) for name in tried]
    why = _why(source, list(tried))
    # Written as JSON only where it is needed: that costs more than all the rest.
    row = columns.when(why.isNotNull(), columns.coalesce(columns.col(CORRUPT), columns.to_json("_all")))
    return rows.select(*inner, *notes).select(*outer, why.alias("_why"), row.alias("_row"), "_file")


def _value(name: str) -> Column:
    value = columns.col(f"{_TRIED}{name}").getField(name)
    return value if name in _UNTEXTUAL else value.cast("string")


def _why(source: SourceConfig, names: list[str]) -> Column:
    unreadable = f"the line is not {source.format.upper()} of the schema {source.schema}"
    reasons = [columns.when(columns.col(CORRUPT).isNotNull(), columns.lit(unreadable))]
    for name in names:
        text = f": {source.fields[name]}" if source.fields else ""
        failed = columns.lit(f"{name} cannot be computed{text}")
        reasons.append(columns.when(columns.col(f"{_TRIED}{name}").isNull(), failed))
    return columns.coalesce(*reasons)


def _taken_apart(mapped: DataFrame) -> tuple[DataFrame, dict[str, Column]]:
    """What is selected from, and the columns that are; Spark has no word of its own for this."""
    spark = mapped.sparkSession
    plan = mapped._jdf.queryExecution().analyzed()  # noqa: SLF001 - the same
    if plan.nodeName() != "Project":
        raise BadRequest(
            f"sql ends with a {plan.nodeName().lower()}; it must be a plain select: no distinct, order by, limit, "
            f"group by or union, unless in a subquery"
        )
    jvm = spark._jvm  # noqa: SLF001 - the same
    assert jvm is not None
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan.child())  # noqa: SLF001 - the same
    listed = plan.projectList()
    made = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    chosen = [listed.apply(index) for index in range(listed.size())]
    return DataFrame(rows, spark), {each.name(): ClassicColumn(made(each)) for each in chosen}


def _tried(spark: SparkSession, column: Column) -> Column:
    """A struct of the column; null when it cannot be computed."""
    jvm = spark._jvm  # noqa: SLF001 - Spark has TRY only for some functions
    assert jvm is not None
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    held = expressions.expression(columns.struct(column)._jc)  # noqa: SLF001 - the same
    return ClassicColumn(expressions.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(held)))
